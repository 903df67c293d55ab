"""Configured model providers: the provider of each model, and probes by small calls."""
