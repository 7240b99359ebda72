"""Finding the few messages of a batch that stop all others, by trying ever smaller shares of it.

A share is told by the bits of a hash of the message, so that the same messages are in it each time the
batch is read. Every one that is found costs some twenty small jobs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from ematix_flow import errors
from ematix_flow.backends.conform import conform
from ematix_flow.backends.streams import KEY, PARTITION, POSITION, TOPIC, VALUE
from ematix_flow.engine import tasks
from ematix_flow.spec.tables import TableSpec

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from ematix_flow.engine.streams.batches import Unloadable

MOST = 100  # beyond that it is no single message's fault
_HASH = "_ematix_hash"
_BITS = 62


def isolate(
    messages: DataFrame, attempt: Callable[[DataFrame], None], error: errors.FlowError
) -> tuple[list[Unloadable], DataFrame]:
    """The messages with which ``attempt`` fails, and the rest, with which it does not.

    ``error`` is what all together failed of; it is raised when no share is to blame.
    """
    from pyspark.sql import functions as F

    hashed = messages.withColumn(
        _HASH, F.pmod(F.xxhash64(VALUE, KEY, TOPIC, PARTITION, POSITION), F.lit(1 << _BITS))
    )
    found: list[Unloadable] = []
    bad_hashes: list[int] = []
    shares: list[tuple[int, int, errors.FlowError]] = [(0, 0, error)]  # bits that are set, and how many
    while shares:
        prefix, depth, reason = shares.pop()
        share = hashed.where(F.pmod(F.col(_HASH), F.lit(1 << depth)) == prefix) if depth else hashed
        held = share.limit(2).collect()
        if not held:
            continue
        if len(held) == 1 and _passes_now(attempt, share.drop(_HASH)):
            continue  # what had failed was something else, which is over
        if len(held) == 1 or depth >= _BITS:
            bad_hashes += [row[_HASH] for row in held]
            found += [_unloadable(row.asDict(), reason) for row in held]
            if len(found) > MOST:
                raise errors.LoadError(
                    f"more than {MOST} messages of one batch cannot be loaded; the last: {reason.what}",
                    state="the batch is not loaded; it comes again with the next start",
                    next_step="mend transform_sql or the target's columns",
                )
            continue
        blamed = False
        for half in (prefix, prefix | (1 << depth)):
            try:
                attempt(hashed.where(F.pmod(F.col(_HASH), F.lit(1 << (depth + 1))) == half).drop(_HASH))
            except errors.FlowError as failure:
                if not is_of_rows(failure):
                    raise
                shares.append((half, depth + 1, failure))
                blamed = True
        if not blamed:
            raise error  # only together they fail: no single message is to blame
    rest = hashed.where(~F.col(_HASH).isin(bad_hashes)).drop(_HASH)
    return found, rest


def _passes_now(attempt: Callable[[DataFrame], None], share: DataFrame) -> bool:
    try:
        attempt(share)
    except errors.FlowError as failure:
        if not is_of_rows(failure):
            raise
        return False
    return True


def is_of_rows(error: errors.FlowError) -> bool:
    """Whether single rows are to blame: a server that is away is not their fault."""
    others = (
        errors.CannotConnect,
        errors.DataLost,
        errors.PlanError,
        errors.TargetFailed,
        errors.JavaNotFound,
    )
    if isinstance(error, errors.RowRejected):
        return True
    if isinstance(error, others):
        return False
    known = isinstance(error, errors.SparkFailed | errors.SourceFailed)
    return known or not isinstance(error, errors.EngineError)


def _unloadable(row: dict[str, object], reason: errors.FlowError) -> Unloadable:
    from ematix_flow.engine.streams.batches import Unloadable

    row.pop(_HASH, None)
    refused = (
        isinstance(reason, errors.RowRejected) and reason.__cause__ is None
    )  # by the table, not by Spark
    stage = "write" if refused else "transform"
    return Unloadable(stage, reason.what, row)


def fitting_task(table: TableSpec) -> tasks.ArrowFunction:
    """Whether rows fit a table, told as an answer."""

    def task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        answer: dict[str, object] = {}
        try:
            for batch in batches:
                conform(batch, table)
        except errors.FlowError as error:
            answer = tasks.told(error)
        yield tasks.one_text(json.dumps(answer))

    return task
