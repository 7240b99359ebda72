"""One file of a format: its header, its types, its rows in and out."""
