"""How data gets in: the gateway (HTTP, WebSocket), a socket for devices, a watched directory.

Start with gateway.py; requests.py and lane.py are what makes a retry harmless.
"""
