"""Trees: git's objects, commits and ignore rules in process, what may be in a tree, trees written out as files."""
