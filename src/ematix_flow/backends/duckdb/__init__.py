"""DuckDB as a batch source and target, through its Python package."""
