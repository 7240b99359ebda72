"""The layout of a table of files: paths, partition folders, columns and CSV dialect, and files to read."""
