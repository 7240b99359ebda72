"""Alerts: who is told that a pipeline failed, gave up, recovered or is stale, and how."""
