"""Internals of the egress proxy: strict reading of requests, dialling, tunnels."""
