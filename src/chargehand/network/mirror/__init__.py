"""Internals of the registry mirror: its server, its client, and one module per ecosystem."""
