"""Speed, measured side by side with the peers; see README.md."""
