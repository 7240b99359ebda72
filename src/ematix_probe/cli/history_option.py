"""The option ``--history``, and the history that it names."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from ematix_probe.errors import UsageError
from ematix_probe.history.store import RunHistory, default_history

HistoryOption = Annotated[
    str | None,
    typer.Option(
        "--history",
        "--run-history-db",
        metavar="URL",
        help="Where runs are recorded: the path of an SQLite file, or postgresql://…, mysql://…, duckdb://…, "
        "s3://…, gs://…, az://…  Without it: EMATIX_PROBE_HISTORY.",
    ),
]


def require_history(given: str | None) -> RunHistory:
    """The history of the option or the environment; UsageError without one."""
    place = default_history(given, os.environ)
    if place is None:
        raise UsageError(
            "no history is named", next_step="give --history history.db, or set EMATIX_PROBE_HISTORY"
        )
    return RunHistory(place)


def optional_history(given: str | None) -> RunHistory | None:
    place = default_history(given, os.environ)
    return None if place is None else RunHistory(place)
