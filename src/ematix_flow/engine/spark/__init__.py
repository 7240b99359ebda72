"""The Spark session: its settings, its start and end, who uses it, and its errors as ours."""
