"""The repository map: definitions and references in each file, and the likely files for a request."""
