"""Where tables of files are stored, and how a version is published there: local disk and S3."""
