"""Speed, measured side by side with peers; see README.md."""
