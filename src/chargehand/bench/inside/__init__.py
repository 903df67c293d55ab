"""Validator programs that run in sandboxes: standard library only, no import of the package."""
