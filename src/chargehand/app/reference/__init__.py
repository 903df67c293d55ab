"""The generators of reference pages in docs/reference."""
