"""Shows how far a run has come that is still at work, and its post-load steps."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any

from ematix_flow.cli.local_time import format_local_time, local_zone_name
from ematix_flow.cli.output import OutputColumn, write_table
from ematix_flow.cli.throughput import format_clock


def progress_text(metrics: Mapping[str, Any]) -> str | None:
    """The stage that a run works on, and its rows; None if the run has not reported any."""
    progress = metrics.get("progress")
    if not progress:
        return None
    parts = [f"{progress['stage']} of {progress['target']}"]
    if progress.get("rows") is not None:
        expected = progress.get("expected_rows")
        rows = f"{progress['rows']:,}" + (f" of {expected:,}" if expected else "")
        parts.append(f"{rows} rows, {progress.get('rows_per_second') or 0:,.0f}/s")
    if progress.get("eta_seconds") is not None:
        parts.append(f"{format_clock(progress['eta_seconds'])} left")
    at = dt.datetime.fromisoformat(progress["at"])
    return f"{', '.join(parts)} (at {format_local_time(at)} {local_zone_name()})"


def write_post_steps(metrics: Mapping[str, Any]) -> None:
    """Write one line per post-load step, if there are any."""
    steps = [step for step in metrics.get("post") or () if "status" in step]  # older runs have other fields
    if not steps:
        return
    columns = (
        OutputColumn("post-load step"),
        OutputColumn("outcome"),
        OutputColumn("seconds", right=True),
        OutputColumn("error", wraps=True),
    )
    rows = [
        (step["label"], step["status"], f"{step['seconds']:.2f}", (step.get("error") or "").split("\n")[0])
        for step in steps
    ]
    write_table(columns, rows)
