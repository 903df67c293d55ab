"""Configuration: keys, sources, and resolution to the values in force."""
