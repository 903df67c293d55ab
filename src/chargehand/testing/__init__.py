"""Conformance suites, fakes and stand-ins for tests and extension authors; no product code imports them."""
