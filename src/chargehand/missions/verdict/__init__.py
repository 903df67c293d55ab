"""Verdicts: running the checks on one exact tree, and interpreting their results."""
