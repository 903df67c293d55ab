"""Conformance suites, fakes and fake programs for tests and extension authors; not imported by product code."""
