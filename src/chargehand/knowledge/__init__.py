"""The repository map: definitions and references of each file of a tree, and the files that a request is likely about."""
