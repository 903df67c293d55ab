"""Agents that are programs: commands and CLIs, and what ACP agents share with them."""
