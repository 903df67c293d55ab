"""Test suites as facts: what a file's tests say, and what two versions of them no longer say."""
