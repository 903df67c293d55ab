"""Model providers as they are configured: who serves a model, and what a small call finds out about it."""
