"""For authors of extensions and for tests: conformance suites, fakes and scripted counterparts; no product code imports it."""
