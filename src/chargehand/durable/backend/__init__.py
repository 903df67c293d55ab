"""What the engine stands on: DBOS and the database that it keeps its rows in."""
