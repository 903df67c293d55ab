"""The ways out of a sandbox: the egress proxy, the registry mirror, and the strict HTTP/1.1 that both speak."""
