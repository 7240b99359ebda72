"""Calls the ``run`` of any probe with what its kind takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from ematix_probe.report import RunReport


def call_probe(
    probe: Any,
    *,
    history: Any = None,
    allow_hosts: Sequence[str] = (),
    progress: Callable[[Any], None] | None = None,
) -> RunReport:
    """Run the probe. Load probes take hosts and report their progress; data probes do neither."""
    takes = inspect.signature(probe.run).parameters
    given = {"history": history, "allow_hosts": tuple(allow_hosts), "progress": progress}
    options = {name: value for name, value in given.items() if value and name in takes}
    report: RunReport = probe.run(**options)
    return report


def shows_progress(probe: Any) -> bool:
    return "progress" in inspect.signature(probe.run).parameters
