"""Finds and follows the files of a source."""
