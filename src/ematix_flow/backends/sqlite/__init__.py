"""SQLite as a batch source and target, through the driver of the standard library."""
