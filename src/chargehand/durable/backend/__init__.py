"""backend: TODO one line."""
