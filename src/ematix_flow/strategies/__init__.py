"""The load strategies, independent of any backend: append, truncate, merge, scd2."""
