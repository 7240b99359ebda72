"""Starts Python workers before the first batch of a stream needs them."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)
_warm: weakref.WeakSet[SparkSession] = weakref.WeakSet()
_lock = threading.Lock()


def warm_workers(spark: SparkSession) -> None:
    """Start one worker for each core in the background, once in a session. A failure has no effect."""
    with _lock:
        if spark in _warm:
            return
        _warm.add(spark)
    threading.Thread(target=_start_workers, args=(spark,), name="ematix-flow-warming", daemon=True).start()


def _start_workers(spark: SparkSession) -> None:
    try:
        cores = spark.sparkContext.defaultParallelism
        spark.range(0, cores, 1, cores).mapInArrow(_no_rows, "id long").collect()
    except Exception as error:  # the session has ended; its users report that
        _log.debug("the workers were not started ahead: %s", error)


def _no_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    pa.array([0])  # Arrow imports pandas with the first list; decoding needs it
    for batch in batches:
        yield batch.slice(0, 0)
