"""The namespace of sources: ``source.postgres(url)``, ``source.parquet(path)`` and the others.

Each is imported from its module when it is used, and its library when a probe runs.
"""

from __future__ import annotations

import functools
import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ematix_probe.sources.delta import delta
    from ematix_probe.sources.duckdb import duckdb
    from ematix_probe.sources.files import csv, jsonl, orc, parquet, s3_parquet
    from ematix_probe.sources.frames import frame
    from ematix_probe.sources.iceberg import iceberg
    from ematix_probe.sources.mysql import mysql
    from ematix_probe.sources.postgres import postgres
    from ematix_probe.sources.spark import spark
    from ematix_probe.sources.sqlite import sqlite

_HOMES = {
    "csv": "files",
    "delta": "delta",
    "duckdb": "duckdb",
    "frame": "frames",
    "iceberg": "iceberg",
    "jsonl": "files",
    "mysql": "mysql",
    "orc": "files",
    "parquet": "files",
    "postgres": "postgres",
    "s3_parquet": "files",
    "spark": "spark",
    "sqlite": "sqlite",
}

_OF_FILES = ("csv", "delta", "iceberg", "jsonl", "orc", "parquet", "s3_parquet")  # also in a bucket
_MORE_OPTIONS = {"csv": ("null", "encoding", "sample_rows"), "jsonl": ("sample_rows",)}

__all__ = [
    "csv",
    "delta",
    "duckdb",
    "frame",
    "iceberg",
    "jsonl",
    "mysql",
    "orc",
    "parquet",
    "postgres",
    "s3_parquet",
    "spark",
    "sqlite",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _with_checked_options(name)


@functools.cache
def _with_checked_options(name: str) -> Any:
    from ematix_probe.sources.s3 import OPTIONS
    from ematix_probe.unknown_options import refuse_unknown_options

    function = getattr(importlib.import_module(f"ematix_probe.sources.{_HOMES[name]}"), name)
    more = (*_MORE_OPTIONS.get(name, ()), *OPTIONS) if name in _OF_FILES else ()
    return refuse_unknown_options(f"source.{name}()", more)(function)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
