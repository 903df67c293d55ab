"""Traces: the spans of a mission, built from its log, and their export to a collector."""
