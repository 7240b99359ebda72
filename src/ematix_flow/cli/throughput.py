"""The throughput of a load in words, for a progress bar."""

from __future__ import annotations

from ematix_flow.cli.output import format_size
from ematix_flow.observe.throughput import Throughput


def describe_throughput(pace: Throughput) -> str:
    """The progress in words, most important first: a narrow terminal cuts off the end."""
    parts = [f"{pace.progress.rows:,} rows, {pace.rows_per_second:,.0f}/s"]
    if pace.seconds_left is not None:
        parts.append(f"{format_clock(pace.seconds_left)} left")
    if pace.progress.bytes:
        parts.append(f"{format_size(pace.progress.bytes)}, {format_size(pace.bytes_per_second)}/s")
    return ", ".join(parts)


def format_clock(seconds: float) -> str:
    """``0:42``, ``1:02:03``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
