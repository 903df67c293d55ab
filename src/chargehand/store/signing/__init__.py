"""signing: TODO one line."""
