"""Runs a pipeline: load, recovery, record, post-load transforms, the order of a DAG."""
