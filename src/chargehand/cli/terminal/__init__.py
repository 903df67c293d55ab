"""The terminal side of every command: options, output, progress, questions, failures, results as text."""
