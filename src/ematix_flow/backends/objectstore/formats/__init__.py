"""File formats: headers, types, readers and writers of CSV, JSON lines, Parquet and ORC."""
