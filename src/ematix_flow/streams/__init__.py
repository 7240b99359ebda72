"""Runs streams: start, restart, dead letters."""
