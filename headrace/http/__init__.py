"""The HTTP layer that tables, services, the gateway and the console share.

`routes` collects typed handlers, `server` runs them, `tokens` says who may, `message` and `websocket` are what
handlers see. Below them: `receiver` makes requests of bytes, `gate` lets them in, `router` and `parameters` find
and call the handler, `connection` and `answers` write what it gives. `client` asks other
servers, `upstream` is one behind this one. See docs/http.md.
"""
