"""Executable benchmarks: problems solved by missions and judged by validators that the solution cannot reach."""
