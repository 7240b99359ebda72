"""What databases in a file (SQLite, DuckDB) share."""
