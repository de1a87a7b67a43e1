"""What lies between server and clients: wrappers of `Clients` that no algorithm notices."""
