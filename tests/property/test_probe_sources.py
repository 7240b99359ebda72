"""Every assertion on every source against a plain-Python oracle, over random tables: the same verdict and the
same counts everywhere.

By default some hundred tables with 24 assertions each: most on SQLite, Postgres, DuckDB and Parquet, a few on
the sources that only change the client or the format. ``make test-long`` takes thousands.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from ematix_probe import sampling
from ematix_probe.sources.base import Source, Subject
from tests.property import probe_stores as stores
from tests.property.probe_engines import DUCKDB, MYSQL, POSTGRES, SQLITE, TABLE, Engine, check_case
from tests.property.probe_tables import TYPES, Case, random_case
from tests.services.mysql_server import MySQLServer
from tests.services.postgres import PostgresServer
from tests.services.s3 import S3Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3_600)]

ALONE = dataclasses.replace(DUCKDB, has_other_tables=False)
JSON = dataclasses.replace(ALONE, has_nan=False, has_infinity=False)
NO_BYTES = [each for each in TYPES if each != "bytes"]
# names, or a character of names, that the store itself cannot keep; DuckDB trims the names in a CSV header
SQLITE_NEVER, MARIADB_NEVER = ("true",), ("\U0001f600", "  ", "İ")
CSV_NEVER = ("  ", " leading", "\tleading", "\u00a0")
PROBED = Subject(TABLE)
Load = Callable[[Case, Engine], Source]


def check_cases(
    seeds: range,
    load: Load,
    engine: Engine,
    subject: Subject = PROBED,
    parents: str = "parents",
    **limits: Any,
) -> None:
    for seed in seeds:
        case = random_case(seed, **limits)
        with pytest.MonkeyPatch.context() as patch:
            if seed % 2:  # as if the tables had many rows
                patch.setattr(sampling, "_MANY_FAILING", 1 + seed % 5)
                patch.setattr(sampling, "_ROWS_TAKEN", 10)
            check_case(case, engine, load(case, engine), subject, parents)


def counts(quick: int, long: int) -> Any:
    """So many tables by default, and so many others in ``make test-long``."""
    ranges = [range(quick), pytest.param(range(quick, quick + long), marks=pytest.mark.long)]
    return pytest.mark.parametrize("seeds", ranges, ids=["some", "many"])


@counts(120, 5_000)
def test_sqlite_agrees_with_the_oracle(seeds: range, tmp_path: Path) -> None:
    path = tmp_path / "probed.db"
    check_cases(seeds, lambda *case: stores.into_sqlite(path, *case), SQLITE, never=SQLITE_NEVER)


@pytest.fixture(scope="module")
def pg(postgres: PostgresServer) -> Iterator[str]:
    postgres.start()
    name = postgres.create_database("probes")
    yield postgres.url(name)
    postgres.drop_database(name)


@counts(80, 3_000)
def test_postgres_agrees_with_the_oracle(seeds: range, pg: str) -> None:
    with psycopg.connect(pg, autocommit=True, options="-c client_min_messages=error") as connection:
        check_cases(seeds, lambda *case: stores.into_postgres(connection, pg, *case), POSTGRES)


@counts(35, 2_000)
def test_duckdb_agrees_with_the_oracle(seeds: range, tmp_path: Path) -> None:
    path = tmp_path / "probed.duckdb"
    check_cases(seeds, lambda *case: stores.into_duckdb(path, *case), DUCKDB)


@counts(35, 2_000)
def test_parquet_agrees_with_the_oracle(seeds: range, tmp_path: Path) -> None:
    check_cases(seeds, lambda *case: stores.into_parquet(tmp_path, *case), DUCKDB)


@counts(10, 500)
def test_orc_agrees_with_the_oracle(seeds: range, tmp_path: Path) -> None:
    check_cases(seeds, lambda *case: stores.into_orc(tmp_path, *case), DUCKDB)


@counts(10, 500)
def test_csv_agrees_with_the_oracle(seeds: range, tmp_path: Path) -> None:
    check_cases(seeds, lambda *case: stores.into_csv(tmp_path, *case), ALONE, never=CSV_NEVER, types=NO_BYTES)


@counts(10, 500)
def test_json_lines_agree_with_the_oracle(seeds: range, tmp_path: Path) -> None:
    check_cases(seeds, lambda *case: stores.into_jsonl(tmp_path, *case), JSON, types=NO_BYTES)


@counts(6, 300)
def test_delta_agrees_with_the_oracle(seeds: range, tmp_path: Path) -> None:
    check_cases(seeds, lambda *case: stores.into_delta(tmp_path, *case), DUCKDB)


@counts(3, 200)
def test_iceberg_agrees_with_the_oracle(seeds: range, tmp_path: Path) -> None:
    subject = Subject("probed", "ns")
    check_cases(seeds, lambda *case: stores.into_iceberg(tmp_path, *case), DUCKDB, subject, "ns.parents")


@pytest.mark.parametrize("frame", ["arrow", "stream", "pandas", "polars", "lazy_polars"])
@counts(5, 300)
def test_frames_agree_with_the_oracle(seeds: range, frame: str) -> None:
    check_cases(seeds, getattr(stores, f"into_{frame}"), ALONE)


@counts(5, 300)
def test_parquet_in_a_bucket_agrees_with_the_oracle(seeds: range, s3: S3Server, s3_bucket: str) -> None:
    given = s3.connection_fields(s3_bucket)
    access = {
        "endpoint_url": given["endpoint"],
        "region": given["region"],
        "access_key": given["access_key_id"],
        "secret_key": given["secret_access_key"],
    }
    check_cases(
        seeds,
        lambda *case: stores.into_s3(s3.client(), s3_bucket, access, *case),
        DUCKDB,
        never=("\\", "\\n"),
    )


def check_mysql(server: MySQLServer, seeds: range) -> None:
    with server.own_database("probes") as url:
        connection = stores.mysql_connection(server, url)
        try:
            check_cases(
                seeds, lambda *case: stores.into_mysql(connection, url, *case), MYSQL, never=MARIADB_NEVER
            )
        finally:
            connection.close()


@counts(20, 1_000)
def test_mariadb_agrees_with_the_oracle(seeds: range, mariadb: MySQLServer) -> None:
    check_mysql(mariadb, seeds)


@pytest.mark.long
def test_mysql_agrees_with_the_oracle(mysql: MySQLServer) -> None:
    check_mysql(mysql, range(1_000))
