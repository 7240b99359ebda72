"""Where tables of files are kept: local disk and S3."""
