"""Trees: git's objects, commits and ignore rules in process, the rules for entries, and trees written as files."""
