"""Lookup tables that a stream's SQL joins with: read completely, cached by Spark, refreshed in the
background.

A refresh reads into a new view and then swaps the name, so that a batch sees either the old rows or the new
ones.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from ematix_flow.backends.base import BatchSource, SourceQuery
from ematix_flow.engine.connections import Connections
from ematix_flow.engine.execution.source_frames import source_frame
from ematix_flow.errors import FlowError
from ematix_flow.plan.spark_types import columns_of_frame
from ematix_flow.spec.generated_names import internal_name
from ematix_flow.spec.streams import LookupSpec, StreamSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Lookups:
    """All lookups of one stream. Nothing is read before `views` or `start` is called."""

    def __init__(self, spec: StreamSpec, connections: Connections, note: Callable[[str], None]) -> None:
        self.spec, self.connections, self.note = spec, connections, note
        self._views: dict[str, str] = {}
        self._frames: dict[str, DataFrame] = {}
        self._retired: dict[str, tuple[str, DataFrame]] = {}
        self._lock = threading.RLock()
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    def views(self) -> Mapping[str, str]:
        """The global view of each lookup, by its name in the SQL."""
        with self._lock:
            for lookup in self.spec.lookups:
                if lookup.name not in self._views:
                    self._read(lookup)
            return dict(self._views)

    def start(self) -> None:
        """Start the background refreshes."""
        self.views()
        for lookup in self.spec.lookups:
            if lookup.refresh_interval_ms is not None:
                thread = threading.Thread(
                    target=self._refresh,
                    args=(lookup,),
                    name=f"ematix-flow lookup {lookup.name}",
                    daemon=True,
                )
                self._threads.append(thread)
                thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(timeout=30)
        with self._lock:
            current = [(self._views[name], frame) for name, frame in self._frames.items()]
            for view, frame in [*self._retired.values(), *current]:
                _drop_view(view, frame)
            self._views, self._frames, self._retired = {}, {}, {}

    def _refresh(self, lookup: LookupSpec) -> None:
        assert lookup.refresh_interval_ms is not None
        while not self._stop.wait(lookup.refresh_interval_ms / 1000):
            try:
                self._read(lookup)
            except Exception as error:  # after any error the previous rows stay in use
                reason = error.what if isinstance(error, FlowError) else type(error).__name__
                self.note(f"lookup {lookup.name!r} keeps its rows: {reason}")

    def _read(self, lookup: LookupSpec) -> None:
        """Read into a new view.

        The view before the previous one is dropped, because no batch reads it any more.
        """
        frame = self._frame(lookup)
        view = internal_name(f"lookup_{uuid.uuid4().hex}")
        frame.createGlobalTempView(view)
        with self._lock:
            if lookup.name in self._retired:
                _drop_view(*self._retired.pop(lookup.name))
            if lookup.name in self._views:
                self._retired[lookup.name] = (self._views[lookup.name], self._frames[lookup.name])
            self._views[lookup.name], self._frames[lookup.name] = view, frame

    def _frame(self, lookup: LookupSpec) -> DataFrame:
        source, spark = self.connections.source(lookup.connection), self.connections.spark()
        with self.connections.spark_errors(f"lookup {lookup.name!r}"):
            if isinstance(source, BatchSource):
                sql = lookup.query or source.table_query(lookup.table or "", [])
                columns = source.describe(sql)
                with source_frame(spark, source, SourceQuery(sql), columns, [], 1) as frame:
                    kept = frame.persist()
                    kept.count()
                return kept
            sql = lookup.query or f"SELECT * FROM {lookup.table}"
            kept = source.frame(spark, sql).persist()
            columns_of_frame(kept)
            kept.count()
            return kept


def _drop_view(view: str, frame: DataFrame) -> None:
    frame.sparkSession.catalog.dropGlobalTempView(view)
    frame.unpersist()
