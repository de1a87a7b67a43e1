"""The same algorithms over a real network, on Flower: the only place that imports flwr."""
