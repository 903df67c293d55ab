"""The check surface: parts of a change that decide how checks run, or that run later, outside any sandbox."""
