"""What a mission shows while it runs: lines for people, and one for each event of its log."""
