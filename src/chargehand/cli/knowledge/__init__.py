"""Commands of what missions learn from earlier ones."""
