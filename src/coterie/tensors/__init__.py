"""Tensors that are formed only when looked at, and the devices they lie on."""
