"""Traces: the spans of a mission, made from its log, and their way to a collector."""
