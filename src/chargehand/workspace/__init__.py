"""Shadow workspaces: the depot, bases, layers, scans, checkpoints, rollback, export."""
