"""Conformance suites, fakes and scripted counterparts for tests and extension authors; no product code imports it."""
