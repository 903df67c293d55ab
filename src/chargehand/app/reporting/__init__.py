"""The report on a mission that a person files or sends: its record, and the record as Markdown."""
