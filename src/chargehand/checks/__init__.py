"""Judgement of a tree: inspection of its changes, and the project's own checks."""
