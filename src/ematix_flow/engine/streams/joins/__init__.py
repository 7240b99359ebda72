"""Joins of two sources of a stream: rows wait for their partners in an embedded database."""
