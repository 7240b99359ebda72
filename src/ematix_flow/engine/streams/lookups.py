"""Lookup tables that a stream's SQL joins with: read completely, cached by Spark, refreshed in the
background.

A refresh reads into a new view and then swaps the name, so that a batch sees either the old rows or the new
ones. The old rows are dropped when no batch uses them any more.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ematix_flow.backends.base import BatchSource, SourceColumn, SourceQuery
from ematix_flow.engine.connections import Connections
from ematix_flow.engine.execution.source_frames import source_frame, source_table
from ematix_flow.engine.spark.column_types import columns_of_frame, schema_ddl
from ematix_flow.errors import FlowError, SchemaMismatch, SourceFailed, Unsupported
from ematix_flow.spec.generated_names import internal_name
from ematix_flow.spec.streams import LookupSpec, StreamSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

BROADCAST_ROWS = 1_000_000  # a lookup of more rows is joined as Spark chooses by its size


@dataclass(frozen=True, eq=False)
class _ReadLookup:
    """The rows of one read: a global view, and the cached frame behind it."""

    view: str
    rows: DataFrame

    def drop(self) -> None:
        self.rows.sparkSession.catalog.dropGlobalTempView(self.view)
        self.rows.unpersist()


class Lookups:
    """All lookups of one stream. Nothing is read before `views` or `start` is called."""

    def __init__(self, spec: StreamSpec, connections: Connections, note: Callable[[str], None]) -> None:
        self.spec, self.connections, self.note = spec, connections, note
        self._current: dict[str, _ReadLookup] = {}
        self._used: dict[Hashable, tuple[_ReadLookup, ...]] = {}  # by the user's latest batch
        self._retired: list[_ReadLookup] = []
        self._schemas: dict[str, StructType] = {}
        self._lock = threading.RLock()
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    def views(self, user: Hashable) -> Mapping[str, str]:
        """The global view of each lookup, by its name in the SQL.

        Their rows are kept until the same user asks again, at its next batch.
        """
        with self._lock:
            self._read_missing()
            self._used[user] = tuple(self._current.values())
            self._drop_unused()
            return {name: read.view for name, read in self._current.items()}

    @contextmanager
    def empty_views(self) -> Iterator[Mapping[str, str]]:
        """A view with the columns of each lookup and no rows, by its name in the SQL. Reads no rows."""
        views: dict[str, str] = {}
        try:
            for lookup in self.spec.lookups:
                with self._open_frame(lookup, rows=False) as frame:
                    views[lookup.name] = _view_name()
                    frame.createGlobalTempView(views[lookup.name])
            yield views
        finally:
            for view in views.values():
                self.connections.spark().catalog.dropGlobalTempView(view)

    def start(self) -> None:
        """Read the lookups and start the background refreshes."""
        with self._lock:
            self._read_missing()
        for lookup in self.spec.lookups:
            if lookup.refresh_interval_ms is not None:
                thread = threading.Thread(
                    target=self._refresh,
                    args=(lookup, lookup.refresh_interval_ms / 1000),
                    name=f"ematix-flow lookup {lookup.name}",
                    daemon=True,
                )
                self._threads.append(thread)
                thread.start()

    def stop(self) -> None:
        """End the refreshes and drop all rows."""
        self._stop.set()
        for thread in self._threads:
            thread.join(timeout=30)
        with self._lock:
            self._retired += self._current.values()
            self._current, self._used = {}, {}
            self._drop_unused()

    def _drop_unused(self) -> None:
        used = [read for reads in self._used.values() for read in reads]
        for read in [each for each in self._retired if each not in used]:
            self._retired.remove(read)
            read.drop()

    # -------------------------------------------------------------- refreshes

    def _refresh(self, lookup: LookupSpec, seconds: float) -> None:
        """Read again every few seconds. After any error the previous rows stay in use."""
        failing: str | None = None
        while not self._stop.wait(seconds):
            try:
                self._swap(lookup, self._read(lookup))
            except Exception as error:
                reason = error.what if isinstance(error, FlowError) else f"{type(error).__name__}: {error}"
                if reason != failing and not self._stop.is_set():
                    self.note(f"lookup {lookup.name!r} cannot be refreshed and keeps its rows: {reason}")
                failing = reason
            else:
                if failing is not None:
                    self.note(f"lookup {lookup.name!r} is refreshed again")
                failing = None

    def _swap(self, lookup: LookupSpec, read: _ReadLookup) -> None:
        with self._lock:
            if self._stop.is_set():  # the stream ended during the read
                read.drop()
                return
            self._retired.append(self._current[lookup.name])
            self._current[lookup.name] = read
            self._drop_unused()

    # -------------------------------------------------------------- one read

    def _read_missing(self) -> None:
        for lookup in self.spec.lookups:
            if lookup.name not in self._current:
                self._current[lookup.name] = self._read(lookup)

    def _read(self, lookup: LookupSpec) -> _ReadLookup:
        from pyspark.sql import functions as F

        with self._open_frame(lookup) as frame:
            schema = self._schemas.setdefault(lookup.name, frame.schema)
            view = _view_name()
            # Spark has one cache entry for equal plans: without the view's name in it, the plan of a refresh
            # would be answered with the rows of the read before
            rows = _with_first_columns(lookup.name, frame, schema).where(F.lit(view) == F.lit(view)).persist()
            is_small = rows.count() <= BROADCAST_ROWS
        read = _ReadLookup(view, rows)
        (F.broadcast(rows) if is_small else rows).createGlobalTempView(view)
        return read

    @contextmanager
    def _open_frame(self, lookup: LookupSpec, rows: bool = True) -> Iterator[DataFrame]:
        """The lookup as a frame, readable while the context is open. Without ``rows`` only its columns."""
        with _name_lookup(lookup), self.connections.spark_errors(f"lookup {lookup.name!r}"):
            source, spark = self.connections.source(lookup.connection), self.connections.spark()
            sql = lookup.query or source.table_query(lookup.table or "", [])
            columns: tuple[SourceColumn, ...] = ()
            if isinstance(source, BatchSource):
                columns = source.describe(sql)
                if not rows:
                    yield spark.createDataFrame([], schema_ddl(source_table(columns, [])))
                    return
            with source_frame(spark, source, SourceQuery(sql), columns, [], 1) as frame:
                columns_of_frame(frame)  # refuses a type that has no name here
                yield frame


@contextmanager
def _name_lookup(lookup: LookupSpec) -> Iterator[None]:
    """Say in an error of the source which lookup it is about, and what to correct there."""
    try:
        yield
    except (SourceFailed, Unsupported) as error:
        if not error.what.startswith("lookup "):
            error.what = f"lookup {lookup.name!r}: {error.what}"
            if isinstance(error, Unsupported):
                error.next_step = "a lookup reads a database, files, Delta or Iceberg"
            elif "pipeline" in (error.next_step or "") or "preview" in (error.next_step or ""):
                error.next_step = f"correct {'query' if lookup.query is not None else 'table'}= of the lookup"
        raise


def _with_first_columns(lookup: str, frame: DataFrame, first: StructType) -> DataFrame:
    """The columns of the first read, which the stream was planned with. A new column is left out."""
    there = {field.name: field.dataType for field in frame.schema}
    for field in first:
        if field.name not in there:
            raise SchemaMismatch(f"lookup {lookup!r} has no column {field.name!r} any more")
        if there[field.name] != field.dataType:
            raise SchemaMismatch(
                f"column {field.name!r} of lookup {lookup!r} was {field.dataType.simpleString()} and is "
                f"{there[field.name].simpleString()} now",
            )
    return frame.select(*(f"`{field.name.replace('`', '``')}`" for field in first))


def _view_name() -> str:
    return internal_name(f"lookup_{uuid.uuid4().hex}")
