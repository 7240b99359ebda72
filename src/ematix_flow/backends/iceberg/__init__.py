"""Iceberg: tables of a catalog, written by Spark."""
