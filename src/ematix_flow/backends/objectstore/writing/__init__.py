"""A load into a table of files: inspection, staging, the table's state and the commit."""
