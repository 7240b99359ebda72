"""Where rows come from and go to: a private PostgreSQL server, and files below one folder.

Sources are filled once a run; every load gets an empty target of its own.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from benchmarks.orders import COLUMNS, DATA, KEY, orders
from tests.services import postgres as postgres_service

TABLE = "orders"
# The tests' server trades safety for speed; here it is as it is shipped.
AS_SHIPPED = {"fsync": "on", "full_page_writes": "on", "wal_level": "replica"}


@dataclass(frozen=True)
class Place:
    """A database or a folder: ``location`` is a URL for PostgreSQL, a path for everything else."""

    kind: str
    location: str


class Places:
    """The sources of one benchmark run, and the makers of its targets."""

    def __init__(self, rows: int, folder: Path) -> None:
        self._rows = rows
        self._folder = folder
        self._server: postgres_service.PostgresServer | None = None
        self._sources: dict[str, Place] = {}
        self._databases: dict[str, str] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Places:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def source(self, kind: str) -> Place:
        """The filled source of this kind."""
        if kind not in self._sources:
            fill = {"sqlite": self._sqlite_source, "postgres": self._postgres_source}[kind]
            self._sources[kind] = fill()
        return self._sources[kind]

    def target(self, kind: str, label: str) -> Place:
        """An empty target that was never used before."""
        if kind == "postgres":
            name = self._postgres().create_database(label)
            url = self._postgres().url(name)
            self._databases[url] = name
            return Place(kind, url)
        folder = self._folder / label
        folder.mkdir(parents=True)
        return Place(kind, str(folder / "target.duckdb") if kind == "duckdb" else str(folder))

    def discard(self, place: Place) -> None:
        """Remove a target."""
        if place.kind == "postgres":
            self._postgres().drop_database(self._databases.pop(place.location))
        else:
            path = Path(place.location)
            shutil.rmtree(path.parent if place.kind == "duckdb" else path)

    def settle(self) -> None:
        """Write out what earlier loads left in memory, so that the next one does not pay for it."""
        if self._server is not None:
            self._server.execute("CHECKPOINT")
        os.sync()

    def server_version(self) -> str | None:
        """PostgreSQL's version, when a server was needed."""
        if self._server is None:
            return None
        return str(self._server.execute("SHOW server_version")[0][0])

    def _postgres(self) -> postgres_service.PostgresServer:
        if self._server is None:
            postgres_service.install()
            self._server = self._stack.enter_context(postgres_service.running_server(AS_SHIPPED))
        return self._server

    def _postgres_source(self) -> Place:
        import adbc_driver_postgresql.dbapi as adbc
        import pyarrow as pa

        server = self._postgres()
        url = server.url(server.create_database("source"))
        lines = [f"{c.name} {c.postgres} NOT NULL" for c in COLUMNS]
        batches = orders(self._rows)
        first = next(batches)

        def all_batches() -> object:
            yield first
            yield from batches

        with adbc.connect(url) as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE TABLE {TABLE} ({', '.join(lines)}, PRIMARY KEY ({KEY}))")
            reader = pa.RecordBatchReader.from_batches(first.schema, all_batches())
            cursor.adbc_ingest(TABLE, reader, mode="append")
            connection.commit()
        server.execute(f"VACUUM ANALYZE {TABLE}", url.rpartition("/")[2])
        return Place("postgres", url)

    def _sqlite_source(self) -> Place:
        file = DATA / f"orders-{self._rows}.sqlite"
        if not file.exists():
            arriving = file.with_suffix(".arriving")
            arriving.unlink(missing_ok=True)
            self._fill_sqlite(arriving)
            arriving.replace(file)
        return Place("sqlite", str(file))

    def _fill_sqlite(self, file: Path) -> None:
        """As SQLite users keep such rows: amounts as REAL, dates as ISO text."""
        import pyarrow as pa

        kept = {"decimal": pa.float64(), "date": pa.string()}
        lines = [f"{c.name} {c.sqlite}{' PRIMARY KEY' if c.name == KEY else ' NOT NULL'}" for c in COLUMNS]
        marks = ", ".join("?" for _ in COLUMNS)
        connection = sqlite3.connect(file)
        try:
            connection.execute(f"CREATE TABLE {TABLE} ({', '.join(lines)})")
            for batch in orders(self._rows):
                values = [
                    batch.column(c.name).cast(kept.get(c.family, batch.column(c.name).type)).to_pylist()
                    for c in COLUMNS
                ]
                connection.executemany(f"INSERT INTO {TABLE} VALUES ({marks})", zip(*values, strict=True))
            connection.commit()
            connection.execute("ANALYZE")
        finally:
            connection.close()
