"""What decides whether a tree is good: inspection of its changes, and the project's own checks."""
