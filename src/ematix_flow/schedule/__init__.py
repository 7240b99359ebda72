"""Cron, due, DAG run, retries, the long-running scheduler, executors."""
