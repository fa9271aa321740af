"""The only sockets: a thin HTTP/1.1 client and server side, and server-sent events."""
