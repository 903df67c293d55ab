"""Belief networks: records, file formats, inference and learning."""
