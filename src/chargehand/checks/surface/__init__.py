"""The check surface: what of a change decides how checks run, and what of it runs later, outside any sandbox."""
