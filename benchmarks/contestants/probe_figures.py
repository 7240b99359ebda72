"""What contestants of data probes share: the bounds of the assertions, and the processor time of a check."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from benchmarks.contestants import Load
from benchmarks.endpoint import Endpoint
from benchmarks.job import Job
from benchmarks.probe_data import newest_text
from benchmarks.process_tree import cpu_seconds

AMOUNTS = (0, 10_000)
QUANTITIES = (1, 100)
CARDINALITIES = (1, 1_000)
AT_LEAST_ROWS, AT_MOST_ROWS = 1, 1_000_000_000
FRESH_DAYS = 36_500
NAMES = (  # in the order of a hand-written statement's figures
    "row_count",
    "order_id.not_null",
    "customer_id.not_null",
    "amount.between",
    "quantity.between",
    "status.is_in",
    "email.regex",
    "created_at.freshness",
    "country.cardinality",
    "order_id.unique",
)


def checks(job: Job, check: Callable[[], dict[str, Any]]) -> Load:
    """A load that reads only: its details are the figures, and the processor time with that of the server."""

    def load(target: Endpoint) -> dict[str, Any]:
        before = _spent(job)
        found = check()
        return {"found": found, "processor seconds": _spent(job) - before}

    return load


def named(figures: tuple[Any, ...]) -> dict[str, Any]:
    """The figures of a hand-written statement by their names."""
    by_name = dict(zip(NAMES, figures, strict=True))
    newest = newest_text(by_name.pop("created_at.freshness"))
    return {**{name: int(value) for name, value in by_name.items()}, "created_at.freshness": newest}


def _spent(job: Job) -> float:
    server = job.options.get("server pid")
    return cpu_seconds(os.getpid()) + (cpu_seconds(int(server)) if server else 0.0)
