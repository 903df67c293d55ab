"""What the state directory keeps: the event log, projects, trust, verdicts, money (SQLite), artifacts (files)."""
