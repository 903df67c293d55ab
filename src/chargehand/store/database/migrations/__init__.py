"""Numbered migrations of the store's schema."""
