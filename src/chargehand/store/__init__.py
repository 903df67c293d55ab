"""The contents of the state directory: event log, projects, trust, verdicts, money (SQLite), artifacts (files)."""
