"""The `container` tier's parts: finding an engine, the content of a container, starting and removing it."""
