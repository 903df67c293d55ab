"""The contract of workspace drivers as a test suite, for authors of drivers."""
