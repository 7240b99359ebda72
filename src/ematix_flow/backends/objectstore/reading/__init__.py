"""Finds the files of a source: the catalog of tables, folders of a disk or bucket, new files of a stream."""
