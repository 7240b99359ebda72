"""DuckDB alone: its extensions read the source and write the target, in one statement.

The extensions come from wheels and are loaded by their path; DuckDB would otherwise download them.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.contestants import Load
from benchmarks.endpoint import Endpoint
from benchmarks.job import Job

EXTENSIONS = {"postgres": "postgres_scanner", "mysql": "mysql_scanner"}


def prepare(job: Job) -> Load:
    import duckdb

    needed = [EXTENSIONS[k] for k in dict.fromkeys((job.source.kind, job.targets[0].kind)) if k in EXTENSIONS]

    def load(target: Endpoint) -> dict[str, Any]:
        with duckdb.connect() as connection:
            for name in needed:
                connection.execute(f"LOAD '{extension(name)}'")
            rows = f"source.{job.table}"
            if job.source.kind == "csv":
                rows = f"read_csv('{Path(job.source.location) / job.table / job.table}.csv')"
            else:
                connection.execute(
                    f"ATTACH '{_address(job.source)}' AS source ({_options(job.source)}, READ_ONLY)"
                )
            connection.execute(f"ATTACH '{_address(target)}' AS target ({_options(target)})")
            schema = {"postgres": "public", "duckdb": "main"}.get(target.kind)
            into = f"target.{schema}.{job.table}" if schema else f"target.{job.table}"
            connection.execute(f"CREATE TABLE {into} AS SELECT * FROM {rows}")
        return {}

    return load


def extension(name: str) -> Path:
    """The file of an extension, for the version of DuckDB that is installed with it."""
    package = Path(import_module(f"duckdb_extension_{name}").__file__ or "").parent
    return next(package.glob(f"extensions/*/{name}.duckdb_extension"))


def _options(endpoint: Endpoint) -> str:
    return f"TYPE {endpoint.kind}"


def _address(endpoint: Endpoint) -> str:
    if endpoint.kind != "mysql":
        return endpoint.location
    login = endpoint.login()
    parts = {"host": login.host, "port": login.port, "user": login.user, "passwd": login.password}
    return " ".join(f"{name}={value}" for name, value in {**parts, "db": login.database}.items())
