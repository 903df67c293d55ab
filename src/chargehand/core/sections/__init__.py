"""Sections of the configuration; the others use them from `core.config`."""
