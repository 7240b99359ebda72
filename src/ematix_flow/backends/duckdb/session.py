"""A session on a DuckDB file, and DuckDB's errors turned into ours."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import duckdb

from ematix_flow.backends.duckdb.handles import connected
from ematix_flow.backends.embedded import UNCHANGED, DatabaseFile
from ematix_flow.backends.relational import SqlSession
from ematix_flow.errors import FlowError, RowRejected, SourceFailed, TargetFailed
from ematix_flow.strategies.functions.base import rejection_in

_FAILURE_OF_A_ROW = (duckdb.ConstraintException, duckdb.DataError)
_ROW_ERRORS = ("Conversion Error", "Out of Range Error")  # as Arrow's stream reports them
_KIND = re.compile(r"^[A-Za-z ]+ Error: ")
_SHOWN = 600
_PAUSE = 0.05


class DuckDBSession(SqlSession):
    """One connection with explicit transactions, for a target."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, file: DatabaseFile) -> None:
        self.connection, self.file = connection, file

    def execute(self, sql: str, params: Mapping[str, Any] | None = None) -> int:
        with failing_as(lambda error: target_error(error, self.file)):
            self._run(sql, params)
            named = [column[0] for column in self.connection.description or ()]
            row = self.connection.fetchone() if named == ["Count"] else None
            return int(row[0]) if row else 0

    def fetch(self, sql: str, params: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
        with failing_as(lambda error: target_error(error, self.file)):
            self._run(sql, params)
            return self.connection.fetchall()

    def _run(self, sql: str, params: Mapping[str, Any] | None) -> None:
        """In a thread of its own when Ctrl-C may come: DuckDB hears it only between two tasks."""
        values = dict(params) if params else None
        if threading.current_thread() is not threading.main_thread():
            self.connection.execute(sql, values)
            return
        done = threading.Event()  # not Thread.join: interrupted, that takes a running thread for dead
        failed: list[Exception] = []

        def run() -> None:
            try:
                self.connection.execute(sql, values)
            except Exception as error:
                failed.append(error)
            finally:
                done.set()

        threading.Thread(target=run, name="duckdb-statement", daemon=True).start()
        try:
            done.wait()
        finally:
            while not done.is_set():
                self.connection.interrupt()
                done.wait(_PAUSE)
        if failed:
            raise failed[0]

    def begin(self) -> None:
        self.execute("BEGIN TRANSACTION")

    def commit(self) -> None:
        with failing_as(lambda error: target_error(error, self.file)):  # never interrupted half way
            self.connection.execute("COMMIT")

    def rollback(self) -> None:
        try:
            self.connection.execute("ROLLBACK")
        except duckdb.TransactionException:
            return  # a commit that failed has ended it already
        except duckdb.Error as error:
            raise target_error(error, self.file) from error


@contextmanager
def writing(file: DatabaseFile) -> Iterator[DuckDBSession]:
    """Creates the database when it is missing."""
    file.require_folder()
    with connected(file, write=True) as connection:
        yield DuckDBSession(connection, file)


@contextmanager
def reading(file: DatabaseFile) -> Iterator[DuckDBSession]:
    """For questions to a target: what is not there yet reads as empty."""
    file.require_folder()
    if file.exists:
        with connected(file, write=False) as connection:
            yield DuckDBSession(connection, file)
    else:
        with duckdb.connect(":memory:") as empty:
            yield DuckDBSession(empty, file)


# ------------------------------------------------------------------ errors


@contextmanager
def failing_as(translate: Callable[[duckdb.Error], FlowError]) -> Iterator[None]:
    """DuckDB's errors by ``translate``; its word for a Ctrl-C it heard is an ordinary RuntimeError."""
    try:
        yield
    except duckdb.Error as error:
        raise translate(error) from error
    except RuntimeError as error:
        if str(error) == "Query interrupted":
            raise KeyboardInterrupt from error
        raise


def target_error(error: duckdb.Error, file: DatabaseFile) -> FlowError:
    """What went wrong while writing; the open transaction is rolled back."""
    told = rejection_in(str(error))
    if told is not None:
        return RowRejected(told, state=UNCHANGED)
    if isinstance(error, _FAILURE_OF_A_ROW):
        return RowRejected(
            f"DuckDB refused a row: {_sentence(error)}",
            state=UNCHANGED,
            next_step="mend or filter the row in the source SQL, or change the column's type or key",
        )
    if isinstance(error, duckdb.IOException | duckdb.FatalException | duckdb.OutOfMemoryException):
        return TargetFailed(
            f"DuckDB cannot write {file.path}: {_sentence(error)}",
            state=UNCHANGED,
            next_step="look at the disk's free space, the memory, and the permissions of file and folder",
        )
    return TargetFailed(f"DuckDB refused a statement on {file.path}: {_sentence(error)}", state=UNCHANGED)


def source_error(error: Exception, file: DatabaseFile) -> FlowError:
    """What went wrong while reading, with DuckDB's own pointer at the place in the SQL."""
    told = rejection_in(str(error))
    if told is not None:
        return RowRejected(told)
    if isinstance(error, duckdb.DataError) or str(error).startswith(_ROW_ERRORS):
        return RowRejected(
            f"DuckDB on connection {file.connection!r} cannot convert a value: {_sentence(error)}",
            next_step="mend the row in the source, or filter it in the source SQL",
        )
    return SourceFailed(
        f"DuckDB on connection {file.connection!r} says: {_sentence(error)}",
        next_step="correct the source SQL",
    )


def _sentence(error: Exception) -> str:
    text = _KIND.sub("", str(error)).strip()
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
