"""The report on a mission for filing or sending: its record, and its rendering as Markdown."""
