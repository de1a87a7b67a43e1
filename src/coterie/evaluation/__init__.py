"""How a run is judged: which model serves which client, and how well it does."""
