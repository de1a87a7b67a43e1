"""Clients on this machine: the simulator, Ray actors, kernels, and copies of a run in lock-step."""
