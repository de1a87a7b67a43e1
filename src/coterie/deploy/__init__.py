"""The processes, keys and services of a deployment, and Flower's insides."""
