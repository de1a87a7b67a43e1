"""What lies between the server and its clients.

What changes or drops uploads is a filter (`core/clients.py`): plain data in the channel of a call,
applied where uploads arise, before they are folded. What only watches is a listener on the server.
Algorithms notice neither.
"""
