"""Spark: how it is found, started, kept quiet and stopped, and how a plan runs on it."""
