"""FedEM, a tagger and a federation of dialects: what a package that extends coterie looks like."""
