"""What lies between the server and its clients: metering, lost replies, the count of replies.

Each is a wrapper around `Clients` that algorithms do not notice. It looks at replies by wrapping
the fold that takes them in, so that it works wherever the folding happens.
"""
