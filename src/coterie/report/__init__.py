"""One run, or several side by side, as one web page that opens offline."""
