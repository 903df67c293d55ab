"""Watching a workspace: the kernel's events, the watched directories, and their known content."""
