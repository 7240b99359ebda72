"""Files in a folder: Parquet, CSV, JSON lines and ORC, as source and as target."""
