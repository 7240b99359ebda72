"""The namespace of sources: ``source.postgres(url)``, ``source.parquet(path)`` and the others.

Each is imported from its module when it is used, and its library when a probe runs.
"""

from __future__ import annotations

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
    return getattr(importlib.import_module(f"ematix_probe.sources.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
