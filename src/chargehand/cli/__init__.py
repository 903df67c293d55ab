"""The command line: arguments in, one document or text out, and an exit code."""
