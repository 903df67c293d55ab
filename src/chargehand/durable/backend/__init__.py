"""The engine's backend: DBOS and the database with its rows."""
