"""Evaluation of a run: which model serves which client, and how well it does."""
