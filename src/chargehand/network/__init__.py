"""The ways out of a sandbox: the egress proxy, the registry mirror, and their strict HTTP/1.1."""
