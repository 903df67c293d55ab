"""Patches as models write them: reading and applying."""
