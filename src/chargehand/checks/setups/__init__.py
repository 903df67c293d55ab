"""Setup commands for a project and its tests' packages, derived from its files; nothing is run."""
