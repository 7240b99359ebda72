"""The sources of one benchmark run, filled once, and the makers of its empty targets."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from benchmarks.datasets import DATA, Dataset
from benchmarks.endpoint import Endpoint
from benchmarks.servers import Servers

if TYPE_CHECKING:
    import pyarrow as pa


class SourcesAndTargets:
    """Databases of private servers, and files below one folder."""

    def __init__(self, dataset: Dataset, rows: int, folder: Path) -> None:
        self._dataset = dataset
        self._rows = rows
        self._folder = folder
        self._sources: dict[str, Endpoint] = {}
        self.servers = Servers()

    def __enter__(self) -> SourcesAndTargets:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.servers.__exit__(kind, error, trace)

    def source(self, kind: str) -> Endpoint:
        """The filled source of this kind."""
        if kind not in self._sources:
            fill = {
                "sqlite": self._sqlite_source,
                "postgres": self._postgres_source,
                "mysql": self._mysql_source,
                "csv": self._csv_source,
            }
            self._sources[kind] = fill[kind]()
        return self._sources[kind]

    def target(self, kind: str, label: str) -> Endpoint:
        """An empty target that was never used before."""
        if kind in ("postgres", "mysql"):
            return self.servers.create(kind, label)
        return folder_target(kind, self._folder / label)

    def discard(self, endpoint: Endpoint) -> None:
        """Remove a target."""
        if endpoint.kind in ("postgres", "mysql"):
            self.servers.drop(endpoint)
        else:
            shutil.rmtree(Path(endpoint.location).parent)

    def _postgres_source(self) -> Endpoint:
        endpoint = self.servers.create("postgres", "source")
        dataset = self._dataset
        lines = f"{dataset.column_lines('postgres')}, PRIMARY KEY ({', '.join(dataset.key)})"
        fill_postgres(endpoint.location, dataset.name, lines, dataset.batches(self._rows))
        self.servers.execute(endpoint, f"VACUUM ANALYZE {dataset.name}")
        return endpoint

    def _mysql_source(self) -> Endpoint:
        """Through a temporary text file: nothing is as fast."""
        import pymysql

        dataset = self._dataset
        endpoint = self.servers.create("mysql", "source")
        file = self._folder / "source.csv"
        self._write_csv(file, header=False)
        login = endpoint.login()
        connection = pymysql.connect(
            host=login.host,
            port=login.port,
            user=login.user,
            password=login.password,
            database=login.database,
            local_infile=True,
        )
        try:
            with connection.cursor() as cursor:
                keys = ", ".join(dataset.key)
                cursor.execute(
                    f"CREATE TABLE {dataset.name} ({dataset.column_lines('mysql')}, PRIMARY KEY ({keys}))"
                )
                cursor.execute(
                    f"LOAD DATA LOCAL INFILE %s INTO TABLE {dataset.name} CHARACTER SET utf8mb4"
                    " FIELDS TERMINATED BY ',' OPTIONALLY ENCLOSED BY '\"' ESCAPED BY ''",
                    (str(file),),
                )
            connection.commit()
        finally:
            connection.close()
            file.unlink()
        return endpoint

    def _csv_source(self) -> Endpoint:
        """All rows in one file, under a line of names."""
        folder = self._folder / "csv-source"
        (folder / self._dataset.name).mkdir(parents=True)
        self._write_csv(folder / self._dataset.name / f"{self._dataset.name}.csv", header=True)
        return Endpoint("csv", str(folder))

    def _write_csv(self, file: Path, *, header: bool) -> None:
        import pyarrow.csv as csv

        batches = self._dataset.batches(self._rows)
        first = next(batches)
        with csv.CSVWriter(file, first.schema, write_options=csv.WriteOptions(include_header=header)) as text:
            text.write_batch(first)
            for batch in batches:
                text.write_batch(batch)

    def _sqlite_source(self) -> Endpoint:
        file = DATA / f"{self._dataset.name}-{self._rows}.sqlite"
        if not file.exists():
            arriving = file.with_suffix(".arriving")
            arriving.unlink(missing_ok=True)
            self._fill_sqlite(arriving)
            arriving.replace(file)
        return Endpoint("sqlite", str(file))

    def _fill_sqlite(self, file: Path) -> None:
        """As SQLite users keep such rows: amounts as REAL, dates as ISO text."""
        import pyarrow as pa

        kept = {"decimal": pa.float64(), "date": pa.string()}
        columns, keys = self._dataset.columns, ", ".join(self._dataset.key)
        marks = ", ".join("?" for _ in columns)
        name = self._dataset.name
        connection = sqlite3.connect(file)
        try:
            lines = self._dataset.column_lines("sqlite")
            connection.execute(f"CREATE TABLE {name} ({lines}, PRIMARY KEY ({keys}))")
            for batch in self._dataset.batches(self._rows):
                values = [
                    batch.column(c.name).cast(kept.get(c.family, batch.column(c.name).type)).to_pylist()
                    for c in columns
                ]
                connection.executemany(f"INSERT INTO {name} VALUES ({marks})", zip(*values, strict=True))
            connection.commit()
            connection.execute("ANALYZE")
        finally:
            connection.close()


def folder_target(kind: str, folder: Path) -> Endpoint:
    """An empty endpoint in a new folder, without the files that its writers create."""
    path = folder / ("target.duckdb" if kind == "duckdb" else "lake")
    (path if kind == "parquet" else folder).mkdir(parents=True)
    return Endpoint(kind, str(path))


def fill_postgres(url: str, table: str, lines: str, batches: Iterator[pa.RecordBatch]) -> None:
    """A new table with these rows; ``lines`` are its columns and constraints."""
    import adbc_driver_postgresql.dbapi as adbc
    import pyarrow as pa

    first = next(batches)

    def all_batches() -> Iterator[pa.RecordBatch]:
        yield first
        yield from batches

    with adbc.connect(url) as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE TABLE {table} ({lines})")
        reader = pa.RecordBatchReader.from_batches(first.schema, all_batches())
        cursor.adbc_ingest(table, reader, mode="append")
        connection.commit()
