"""The command line: arguments in, one document or text out, and the exit code that says how it went."""
