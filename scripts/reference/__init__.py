"""The generators of reference pages in docs/reference, and of the client's table of routes."""
