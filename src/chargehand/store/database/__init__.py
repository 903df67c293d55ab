"""database: TODO one line."""
