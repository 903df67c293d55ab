"""Workspaces and sandboxes of a mission, and the environment layer below them."""
