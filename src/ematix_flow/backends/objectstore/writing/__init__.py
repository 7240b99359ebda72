"""A load into a table of files: staging, table state, commit."""
