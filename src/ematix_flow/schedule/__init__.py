"""Decides when pipelines run: slots, due runs, workflows, freshness, executors."""
