"""The Spark half: tables of files as DataFrames, and a query over them.

Spark's own readers read wherever they can. Only the session passed in is used, and nothing is left in
its catalog.
"""

from ematix_flow.backends.objectstore.spark.source import FilesSource, LocalFilesSource

__all__ = ["FilesSource", "LocalFilesSource"]
