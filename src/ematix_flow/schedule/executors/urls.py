"""An executor by its URL."""

from __future__ import annotations

from urllib.parse import parse_qsl, urlsplit

from ematix_flow.errors import UsageError, did_you_mean
from ematix_flow.schedule.executors.base import Executor
from ematix_flow.schedule.executors.subprocesses import SubprocessExecutor

KINDS = ("subprocess",)


def executor_for(url: str) -> Executor:
    """``subprocess://`` or ``subprocess://?workers=4``. UsageError when it is none."""
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    if parts.scheme not in KINDS or "://" not in url:
        raise UsageError(
            f"there is no executor {url!r}.{did_you_mean(parts.scheme or url, KINDS)}",
            next_step="give --executor subprocess://",
        )
    workers = options.pop("workers", None)
    if options:
        raise UsageError(f"subprocess:// takes ?workers=, and not {', '.join(sorted(options))}")
    if workers is not None and (not workers.isdigit() or int(workers) < 1):
        raise UsageError(f"workers= takes a number from 1 on, not {workers!r}")
    return SubprocessExecutor(int(workers) if workers else None)
