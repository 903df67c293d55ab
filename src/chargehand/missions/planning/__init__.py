"""Plans as people and planners write them: read, expanded, checked."""
