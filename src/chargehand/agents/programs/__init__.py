"""Agents that are programs: commands and CLIs, and their common parts with ACP agents."""
