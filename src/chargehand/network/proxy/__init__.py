"""Internals of the egress proxy: strict parsing of requests, dialling, tunnels."""
