"""The `container` tier's parts: finding an engine, what a container holds, starting and removing it."""
