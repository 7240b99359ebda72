"""Python workers that are there when the first batch comes, started while a stream still looks around."""

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
    """One worker a core, once a session, in the background. Whether it succeeds changes nothing."""
    with _lock:
        if spark in _warm:
            return
        _warm.add(spark)
    threading.Thread(target=_start_workers, args=(spark,), name="ematix-flow-warming", daemon=True).start()


def _start_workers(spark: SparkSession) -> None:
    try:
        cores = spark.sparkContext.defaultParallelism
        spark.range(0, cores, 1, cores).mapInArrow(_no_rows, "id long").collect()
    except Exception as error:  # the session ended meanwhile: who works with it will say so
        _log.debug("the workers were not started ahead: %s", error)


def _no_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    pa.array([0])  # with the first list Arrow imports pandas: payloads that are decoded need it
    for batch in batches:
        yield batch.slice(0, 0)
