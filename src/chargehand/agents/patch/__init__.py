"""Parsers for the notations in which models write patches."""
