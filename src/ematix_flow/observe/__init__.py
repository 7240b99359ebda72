"""Progress, logs, metrics, traces, lineage, alerters."""
