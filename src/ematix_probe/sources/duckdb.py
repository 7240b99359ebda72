"""A DuckDB file as a source, opened for reading only: no process can write to it while a probe reads."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlglot import exp

from ematix_probe.errors import CannotConnect, DeclarationError, SourceFailed
from ematix_probe.extras import require
from ematix_probe.location import caller_location
from ematix_probe.sources.base import ColumnInfo, OpenSubject, Source, Subject
from ematix_probe.sources.interrupting import run_interruptibly
from ematix_probe.sources.sql_subject import check_timeout, describing, reference_subject, subject_tree

if TYPE_CHECKING:
    import duckdb as engine

_SQLITE = b"SQLite format 3\0"
_KEY = (
    "SELECT constraint_column_names FROM duckdb_constraints() WHERE constraint_type = 'PRIMARY KEY' "
    "AND table_name = $table AND schema_name = coalesce($schema, current_schema()) "
    "AND database_name = current_database()"
)


@dataclass(frozen=True)
class DuckDBSource(Source):
    """A file. ``timeout``: the seconds that a statement may take."""

    kind = "duckdb"
    path: str
    timeout: float | None = None

    @property
    def label(self) -> str:
        return self.path

    @contextmanager
    def open(self, subject: Subject) -> Iterator[OpenSubject]:
        path = Path(self.path).expanduser()
        if not path.is_file():
            raise CannotConnect(f"there is no DuckDB file {self.path}", next_step="correct the path")
        with (
            tempfile.TemporaryDirectory(prefix="ematix-probe-", ignore_cleanup_errors=True) as folder,
            closing(self._connect(path, folder)) as connection,
        ):
            yield OpenDuckDB(connection, subject, self)

    def _connect(self, path: Path, folder: str) -> engine.DuckDBPyConnection:
        from ematix_probe.sources.duckdb_scan import plain_message
        from ematix_probe.sources.machine_limits import processors, scan_memory

        driver = require("duckdb", "duckdb", "a DuckDB source")
        settings: dict[str, Any] = {
            "memory_limit": scan_memory(),
            "threads": processors(),
            "temp_directory": str(Path(folder) / "spill"),
            "preserve_insertion_order": False,
            "python_enable_replacements": False,  # a name in SQL is never a variable of the program
            "autoinstall_known_extensions": False,  # a probe loads nothing from the network
        }
        if _is_sqlite(path):
            raise CannotConnect(
                f"{self.path} is a SQLite file, not one of DuckDB",
                next_step=f'write  source.sqlite("{self.path}")',
            )
        try:
            connection = driver.connect(str(path), read_only=True, config=settings)
            connection.execute("SET TimeZone = 'UTC'")
            return connection  # type: ignore[no-any-return]
        except driver.Error as error:
            message = plain_message(str(error))
            if "lock" in message.lower() or "different configuration" in message:
                raise CannotConnect(
                    f"{self.path} is open for writing, and DuckDB allows no reader next to a writer",
                    state=message.splitlines()[0],
                    next_step="close the connection that writes, then run the probe again",
                ) from None
            raise CannotConnect(f"{self.path} cannot be opened: {message}") from None


class OpenDuckDB(OpenSubject):
    dialect = "duckdb"

    def __init__(self, connection: engine.DuckDBPyConnection, subject: Subject, source: DuckDBSource) -> None:
        self._connection, self._subject, self._source = connection, subject, source
        self._driver = require("duckdb", "duckdb", "a DuckDB source")
        self._columns = self._describe(subject)
        self._key: tuple[str, ...] = ()
        if subject.query is None:
            found = self._run(_KEY, {"table": subject.table, "schema": subject.schema})
            self._key = tuple(found[0][0]) if found else ()

    def columns(self) -> Sequence[ColumnInfo]:
        return self._columns

    def rows(self) -> exp.Query | exp.Table:
        return subject_tree(self._subject)

    def reference(self, table: str) -> exp.Query | exp.Table:
        return subject_tree(reference_subject(table))

    def reference_columns(self, table: str) -> Sequence[ColumnInfo]:
        return self._describe(reference_subject(table))

    def key(self) -> Sequence[str]:
        return self._key

    def fetch(self, query: exp.Query) -> list[tuple[Any, ...]]:
        return self._run(query.sql(dialect=self.dialect))

    def _describe(self, subject: Subject) -> tuple[ColumnInfo, ...]:
        from ematix_probe.sources.duckdb_types import column_info

        found = self._run(f"DESCRIBE {describing(subject_tree(subject)).sql(dialect=self.dialect)}")
        return tuple(column_info(row[0], row[1]) for row in found)

    def _run(self, sql: str, values: dict[str, Any] | None = None) -> list[tuple[Any, ...]]:
        from ematix_probe.sources.duckdb_scan import fetch_rows, plain_message

        limit = self._source.timeout
        timer = None if limit is None else threading.Timer(limit, self._connection.interrupt)
        if timer is not None:
            timer.daemon = True
            timer.start()
        try:
            if values is not None:
                return self._connection.execute(sql, values).fetchall()
            return run_interruptibly(lambda: fetch_rows(self._connection, sql), self._connection.interrupt)
        except self._driver.Error as error:
            with suppress(self._driver.Error):
                self._connection.rollback()
            if isinstance(error, self._driver.InterruptException) and limit is not None:
                raise SourceFailed(
                    f"the statement took longer than {limit:g} s", where=self._source.label
                ) from None
            raise SourceFailed(plain_message(str(error)), where=self._source.label) from None
        finally:
            if timer is not None:
                timer.cancel()


def duckdb(path: str | Path, *, timeout: float | None = None) -> DuckDBSource:
    """A DuckDB file."""
    if not isinstance(path, (str, Path)) or not str(path).strip():
        raise DeclarationError(f"duckdb() takes a path, not {path!r}", where=caller_location())
    return DuckDBSource(str(path), check_timeout(timeout))


def _is_sqlite(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(_SQLITE)) == _SQLITE
    except OSError:
        return False  # DuckDB says why the file cannot be opened
