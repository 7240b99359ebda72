"""dlt, in the way that its documentation calls fastest: connectorx reads Arrow, and dlt loads several Parquet
files.

It loads PostgreSQL through ADBC, and MariaDB only through SQLAlchemy, which inserts rows in batches. It reads
files by its DuckDB reader, as Arrow, and writes Delta tables by its filesystem destination. It reads changes
by its incremental cursor and merges them by its own strategies.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from benchmarks.contestants import Load
from benchmarks.endpoint import Endpoint
from benchmarks.job import Job

SETTINGS = {
    "RUNTIME__DLTHUB_TELEMETRY": "false",
    "RUNTIME__LOG_LEVEL": "ERROR",
    "DATA_WRITER__DISABLE_COMPRESSION": "true",
    "DATA_WRITER__FILE_MAX_ITEMS": "200000",  # several files are loaded at the same time
}


def prepare(job: Job) -> Load:
    dlt = _imported()
    rows = _csv_rows if job.source.kind == "csv" else _table_rows
    rows(job)  # imports what it needs

    def load(target: Endpoint) -> dict[str, Any]:
        pipeline = _pipeline(dlt, job, target)
        done = pipeline.run(rows(job), write_disposition="append", **_files(target))
        done.raise_on_failed_jobs()
        return {}

    return load


def _table_rows(job: Job) -> Any:
    from dlt.sources.sql_database import sql_table

    return sql_table(
        credentials=_address(job.source),
        table=job.table,
        backend="connectorx",
        backend_kwargs={"return_type": "arrow_stream", "batch_size": 100_000, "conn": _plain(job.source)},
        reflection_level="full_with_precision",
    )


def _csv_rows(job: Job) -> Any:
    from dlt.sources.filesystem import filesystem, read_csv_duckdb

    found = filesystem(bucket_url=str(Path(job.source.location) / job.table), file_glob="*.csv")
    return (found | read_csv_duckdb(chunk_size=100_000, use_pyarrow=True)).with_name(job.table)


def _files(target: Endpoint) -> dict[str, str]:
    """The format of the files that are loaded, and of the table."""
    return {"loader_file_format": "parquet"} | ({"table_format": "delta"} if target.kind == "delta" else {})


def prepare_changes(job: Job) -> Load:
    """Its default: rows with the incoming keys are deleted, then the incoming ones inserted. Or its scd2."""
    strategy = "delete-insert" if job.options["strategy"] == "merge" else "scd2"
    return _prepare_merge(job, strategy)


def prepare_upsert(job: Job) -> Load:
    return _prepare_merge(job, "upsert")


def _prepare_merge(job: Job, strategy: str) -> Load:
    dlt = _imported()
    from dlt.sources.sql_database import sql_table

    disposition: dict[str, str] = {"disposition": "merge", "strategy": strategy}
    hints: dict[str, Any] = {"primary_key": "o_orderkey"}
    table = job.table
    if strategy == "scd2":
        # without the merge key every row that is not among the changes would be closed
        disposition |= {"validity_column_names": ["valid_from", "valid_to"]}  # type: ignore[dict-item]
        disposition |= {"row_version_column_name": "row_hash"}
        hints = {"merge_key": "o_orderkey"}
        table = f"{job.table}_hashed"

    def load(target: Endpoint) -> dict[str, Any]:
        rows = sql_table(
            credentials=_address(job.source),
            table=table,
            backend="connectorx",
            backend_kwargs={"return_type": "arrow_stream", "batch_size": 100_000, "conn": _plain(job.source)},
            reflection_level="full_with_precision",
            incremental=dlt.sources.incremental(
                "updated_at",
                initial_value=_moment(job.options["after"]),
                range_start="open",
            ),
        )
        rows.apply_hints(table_name=job.table, write_disposition=disposition, **hints)
        pipeline = _pipeline(dlt, job, target)
        pipeline.run(rows, **_files(target)).raise_on_failed_jobs()
        return {}

    return load


def _moment(text: str) -> Any:
    import datetime as dt

    return dt.datetime.fromisoformat(text)


def _imported() -> Any:
    os.environ.update(SETTINGS)
    import dlt
    import dlt.destinations
    import pyarrow.parquet  # the load imports it
    import sqlalchemy.dialects.postgresql.psycopg2

    assert pyarrow.parquet and sqlalchemy.dialects.postgresql.psycopg2
    return dlt


def _pipeline(dlt: Any, job: Job, target: Endpoint) -> Any:
    folder = Path(job.marks).with_name(f"dlt-{job.targets.index(target)}")
    if target.kind == "postgres":
        destination, dataset = dlt.destinations.postgres(target.location), "public"
    elif target.kind == "duckdb":
        destination, dataset = dlt.destinations.duckdb(target.location), "main"
    elif target.kind == "delta":
        lake = Path(target.location)
        destination, dataset = dlt.destinations.filesystem(str(lake.parent)), lake.name
    else:
        destination, dataset = dlt.destinations.sqlalchemy(_address(target)), target.login().database
    return dlt.pipeline("copy", destination=destination, dataset_name=dataset, pipelines_dir=str(folder))


def _address(endpoint: Endpoint) -> str:
    scheme, _, rest = endpoint.location.partition("://")
    return {"postgresql": "postgresql+psycopg2", "mysql": "mysql+pymysql"}[scheme] + "://" + rest


def _plain(endpoint: Endpoint) -> str:
    return endpoint.location
