"""The algorithms, one method in each file; `registry.py` has their names."""
