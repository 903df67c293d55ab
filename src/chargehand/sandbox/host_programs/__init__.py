"""How the host's programs are found, and what of the host each one needs to run."""
