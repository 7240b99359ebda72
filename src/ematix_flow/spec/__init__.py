"""Frozen values: connections, types, tables, markers, pipelines, streams.

Everything here is pure: no Spark, no driver, no file and no environment is touched. Each value
round-trips through JSON.
"""
