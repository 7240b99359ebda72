"""Who takes part. A contestant is a function: given a job it gets ready, and returns how it loads a target.

Each runs in a fresh process (``python -m benchmarks.contestants NAME JOB``), so that none inherits what
another has warmed up.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from benchmarks.job import Job
from benchmarks.places import Place

Load = Callable[[Place], dict[str, Any]]
"""Loads all rows into a target and returns when they are committed; answers with details worth keeping."""

_HOMES = {
    "flow": "benchmarks.contestants.flow:prepare",
    "jdbc": "benchmarks.contestants.spark_jdbc:prepare_as_written",
    "jdbc-tuned": "benchmarks.contestants.spark_jdbc:prepare_tuned",
    "jdbc-parquet": "benchmarks.contestants.spark_jdbc:prepare_through_parquet",
    "driver": "benchmarks.contestants.drivers:prepare",
    "pipe": "benchmarks.contestants.drivers:prepare_pipe",
}


def prepare(name: str, job: Job) -> Load:
    """Start what the contestant needs; importing it is part of its start."""
    module, _, function = _HOMES[name].partition(":")
    load: Load = getattr(import_module(module), function)(job)
    return load
