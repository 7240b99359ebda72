"""Tables of files as DataFrames, and queries over them.

Spark's own readers are used where possible. Only the given session is used, and nothing stays in its
catalog.
"""

from ematix_flow.backends.objectstore.spark.source import FilesSource, LocalFilesSource

__all__ = ["FilesSource", "LocalFilesSource"]
