"""Configuration: its keys, its sources, and how they are resolved into what is in force."""
