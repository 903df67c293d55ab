"""The work on forges' issues: visits of each issue, and their effects on missions."""
