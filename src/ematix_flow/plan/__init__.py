"""The plan of a run as a value: stages, table changes, range, path, guarantee, tuning. No side effects."""
