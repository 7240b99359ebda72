"""Casts and texts of Arrow batches."""
