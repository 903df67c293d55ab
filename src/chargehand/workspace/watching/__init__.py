"""How a workspace is watched: the kernel's events, the watched directories, and what is known to lie in them."""
