"""What every command needs of a terminal: options, output, progress, questions, failures, results as text."""
