"""Alerts: messages that a pipeline failed, gave up, recovered or is stale, and their receivers."""
