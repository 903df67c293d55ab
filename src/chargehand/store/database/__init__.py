"""The SQLite database of the state directory: connections, schema, migrations, and files written whole."""
