"""HTTP/1.1: the server that clients talk to and the client that talks to providers."""
