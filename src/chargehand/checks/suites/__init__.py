"""Test suites as facts: read the tests of a file, compare two versions, and measure whether they weakened."""
