"""The display of a running mission: lines for people, and one for each event of its log."""
