"""The Spark session: its settings, its start and end, its users, and the translation of its errors."""
