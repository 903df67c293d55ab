"""Verdicts: running the checks on one exact tree, and what their outcome means."""
