"""Plans as people and planners write them: reading, expansion, validation."""
