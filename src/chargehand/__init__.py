"""Chargehand puts coding agents to work on real git repositories and lets in only what passes."""

__version__ = "0.1.0"
