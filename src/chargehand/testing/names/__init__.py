"""Conformance suites of small registered implementations."""
