"""Streams on Spark: one query follows the sources, each of its batches goes through the commit protocol."""
