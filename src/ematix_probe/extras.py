"""The optional libraries: what each is for, and what to install when one is missing."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ematix_probe.errors import MissingDependency

DISTRIBUTIONS = ("ematix-probe-spark", "ematix-flow-spark")  # each holds this package
# the extras of ematix-flow-spark have other names for some of what only probes need
_OF_FLOW = {
    "delta": "probe-delta",
    "iceberg": "probe-iceberg",
    "frames": "probe-frames",
    "load": "probe-load",
}


@dataclass(frozen=True)
class Library:
    """A library: the module to import, the name to install, the extra that holds it, and what it is for."""

    module: str
    name: str
    extra: str | None
    purpose: str


LIBRARIES = (
    Library("duckdb", "duckdb", None, "files, frames and DuckDB"),
    Library("pyarrow", "pyarrow", None, "files, frames and buckets"),
    Library("sqlglot", "sqlglot", None, "the statements of probes"),
    Library("sqlalchemy", "sqlalchemy", None, "history"),
    Library("typer", "typer", None, "the command line"),
    Library("rich", "rich", None, "the command line"),
    Library("psycopg", "psycopg", "postgres", "PostgreSQL"),
    Library("pymysql", "pymysql", "mysql", "MySQL and MariaDB"),
    Library("deltalake", "deltalake", "delta", "Delta tables"),
    Library("pyiceberg", "pyiceberg", "iceberg", "Iceberg tables"),
    Library("polars", "polars", "frames", "frames of polars"),
    Library("pandas", "pandas", "frames", "frames of pandas"),
    Library("pyspark", "pyspark", "spark", "frames and tables of Spark"),
    Library("httptools", "httptools", "load", "load over HTTP"),
    Library("h2", "h2", "load", "load over HTTP/2"),
    Library("uvloop", "uvloop", "load", "load over HTTP, twice as fast"),
    Library("cloudpickle", "cloudpickle", "load", "load in several processes with functions as checks"),
)


def require(module: str, extra: str, what: str) -> Any:
    """Import a library that ``what`` needs; MissingDependency says what to install."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        root = module.partition(".")[0]
        if error.name is not None and error.name.partition(".")[0] != root:
            raise  # it is there, but broken
        raise MissingDependency(
            f"{what} needs the library {root!r}, which is not installed", next_step=install_command(extra)
        ) from error


def install_command(extra: str) -> str:
    """The command that installs an extra, or a base requirement, into the environment that runs."""
    if extra not in {library.extra for library in LIBRARIES}:
        return f"{sys.executable} -m pip install {extra}"
    return f"{sys.executable} -m pip install '{distribution()}[{extra_name(extra)}]'"


def extra_name(extra: str) -> str:
    return _OF_FLOW.get(extra, extra) if distribution() == "ematix-flow-spark" else extra


def distribution() -> str:
    """The distribution that brought this package."""
    from importlib import metadata

    for name in DISTRIBUTIONS:
        try:
            metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
        return name
    return DISTRIBUTIONS[0]


def installed() -> Iterator[tuple[Library, str | None]]:
    """Each library and its version; None where it is not installed. Imports none of them."""
    from importlib import metadata, util

    for library in LIBRARIES:
        try:
            yield library, metadata.version(library.name)
        except metadata.PackageNotFoundError:
            yield library, "?" if util.find_spec(library.module) else None
