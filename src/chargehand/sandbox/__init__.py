"""Sandboxes in which untrusted programs run, and probes of the tiers that this machine offers."""
