"""Agents: adapters that run an agent inside a mission's sandbox."""
