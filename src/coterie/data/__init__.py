"""The data of clients: federations, the sources they are made from, and tables of the user."""
