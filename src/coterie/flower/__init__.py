"""The same algorithms over a real network, on Flower: its clients, its nodes and their messages."""
