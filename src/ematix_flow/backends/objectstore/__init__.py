"""Tables of Parquet, CSV, JSON lines and ORC files on a local disk or in S3, as source, target and stream.

The rooms, each of which imports only those before it: `layout` (paths, partition folders, columns), `formats`
(headers, types, readers and writers of each format), `table` (what a load knows of a table: its storage, the
state of a version, staging), `writing` (one load) and `storage` (publishing on a local disk and in S3), which
are apart from each other, `reading` (catalog, folder trees, new files), `spark` (tables as DataFrames). The
modules at the top join them: `backend` and `s3_backend`, `target`, `stream`.
"""
