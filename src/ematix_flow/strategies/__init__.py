"""What a load means, free of any backend: append, truncate, merge, scd2."""
