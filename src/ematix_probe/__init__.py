"""Data-quality and load tests for databases, files, lakes and data frames.

::

    from ematix_probe import probe, source

    @probe.data(source=source.postgres("postgres://localhost/shop"), table="orders")
    def orders(t):
        t.column("id").not_null().unique()
        t.column("amount").between(0, 10_000)

Importing it is quick: an engine or a driver is imported when a probe uses it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ematix_probe._version import __version__

if TYPE_CHECKING:
    from ematix_probe import probe, source
    from ematix_probe.flow import probe_from_table
    from ematix_probe.load.checks import check
    from ematix_probe.load.feeders import feed
    from ematix_probe.load.http_target import basic, bearer, http
    from ematix_probe.load.sql_target import sql
    from ematix_probe.report import AssertionResult, RunReport
    from ematix_probe.run_history import RunHistory

_HOMES = {
    "AssertionResult": "ematix_probe.report",
    "RunHistory": "ematix_probe.run_history",
    "RunReport": "ematix_probe.report",
    "basic": "ematix_probe.load.http_target",
    "bearer": "ematix_probe.load.http_target",
    "check": "ematix_probe.load.checks",
    "feed": "ematix_probe.load.feeders",
    "http": "ematix_probe.load.http_target",
    "probe_from_table": "ematix_probe.flow",
    "sql": "ematix_probe.load.sql_target",
}
_MODULES = ("probe", "source")

__all__ = [
    "AssertionResult",
    "RunHistory",
    "RunReport",
    "__version__",
    "basic",
    "bearer",
    "check",
    "feed",
    "http",
    "probe",
    "probe_from_table",
    "source",
    "sql",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"ematix_probe.{name}")
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
