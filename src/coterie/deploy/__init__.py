"""The processes, keys and services of a deployment over a real network."""
