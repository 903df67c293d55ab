"""Tools of the native agent that run inside the sandbox."""
