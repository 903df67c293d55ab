"""Commands of knowledge: what missions learned, the repository map, the reference library."""
