"""Finds the host's programs and the parts of the host that each one needs to run."""
