"""The simulator: chunks of clients, kernels, wrappers around the seam, checkpoints."""
