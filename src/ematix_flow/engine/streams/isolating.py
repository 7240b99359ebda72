"""Finding the few messages of a batch that stop all others, by trying ever smaller shares of it.

First those that fail by themselves are found; then, if the rest still fails, those that fail only together
with others, of which the first that came stay: two messages with one key, for one. A batch that is too large
for the driver is narrowed down on Spark, by shares of a hash that is the same each time the batch is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ematix_flow import errors
from ematix_flow.engine.streams.few import ROWS, Messages, few
from ematix_flow.engine.streams.incoming import Incoming, held
from ematix_flow.spec.naming import own_name

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from ematix_flow.engine.streams.batches import Unloadable

MOST = 1_000  # beyond that it is no single message's fault
_HASH = own_name("hash")
_BITS = 62
# the machine's, the network's or a right that is missing: never a row's fault
_SIGNS = (
    "OutOfMemoryError",
    "MemoryError",
    "No space left on device",
    "Disk quota exceeded",
    "Python worker exited",
    "was killed",
    "Permission",
    "permission",
    "Connection",
    "timed out",
    "OSError",
)

Attempt = Callable[["Messages | DataFrame"], None]


def isolate(
    incoming: Incoming, attempt: Attempt, error: errors.FlowError
) -> tuple[list[Unloadable], Incoming]:
    """The messages with which ``attempt`` fails, and the rest, with which it does not.

    ``error`` is what all together failed of.
    """
    small = incoming.few()
    if small is None:
        small = few(incoming.frame, min(incoming.frame.limit(ROWS + 1).count(), ROWS + 1))
    if small is None:
        return _among_many(incoming.frame, attempt, error)
    import pyarrow as pa

    table = pa.Table.from_batches(small)
    refused = refused_rows(table.num_rows, lambda rows: attempt(_chosen(table, rows)), error)
    rest = [row for row in range(table.num_rows) if row not in refused]
    rows = {row: table.slice(row, 1).to_pylist()[0] for row in refused}
    found = [_unloadable(rows[row], reason) for row, reason in sorted(refused.items())]
    return found, held(incoming.frame.sparkSession, _chosen(table, rest), table.schema)


def refused_rows(
    total: int, attempt: Callable[[Sequence[int]], None], error: errors.FlowError
) -> dict[int, errors.FlowError]:
    """By their numbers the rows with which ``attempt`` fails, each with its reason; without them it passes.

    A reason that may be another's fault counts only when other rows pass.
    """
    found: dict[int, errors.FlowError] = {}

    def refuse(row: int, reason: errors.FlowError) -> None:
        found[row] = reason
        if len(found) > MOST:
            raise _too_many(reason)

    if total == 1:
        reason = _failure(attempt, [0])
        if reason is not None:
            refuse(0, reason)
    shares = [(0, total, error)] if total > 1 else []
    while shares:
        low, high, reason = shares.pop()
        if high - low == 1:
            refuse(low, reason)
            continue
        middle = (low + high) // 2
        for start, end in ((middle, high), (low, middle)):
            failed = _failure(attempt, range(start, end))
            if failed is not None:
                shares.append((start, end, failed))
    rest = [row for row in range(total) if row not in found]
    failed = _failure(attempt, rest) if rest else None
    if failed is not None:
        for row, reason in _only_together(rest, attempt, failed):
            refuse(row, reason)
    unsure = next((reason for reason in found.values() if not isinstance(reason, errors.RowRejected)), None)
    if unsure is not None and len(found) == total:
        raise unsure
    return found


def _only_together(
    rows: Sequence[int], attempt: Callable[[Sequence[int]], None], error: errors.FlowError
) -> Iterator[tuple[int, errors.FlowError]]:
    """The rows that fail with those before them."""
    passed: list[int] = []
    shares: list[tuple[Sequence[int], errors.FlowError]] = [(rows, error)]
    while shares:
        share, reason = shares.pop()
        failed = _failure(attempt, [*passed, *share]) if share is not rows else error
        if failed is None:
            passed += share
        elif len(share) == 1:
            yield share[0], failed
        else:
            middle = len(share) // 2
            shares += [(share[middle:], reason), (share[:middle], reason)]


def _failure(attempt: Callable[[Sequence[int]], None], rows: Sequence[int]) -> errors.FlowError | None:
    try:
        attempt(rows)
    except errors.FlowError as failure:
        if not is_of_rows(failure):
            raise
        return failure
    return None


def is_of_rows(error: errors.FlowError) -> bool:
    """Whether single rows may be to blame: a server that is away or a full disk is not their fault."""
    if isinstance(error, errors.RowRejected):
        return True
    kinds = (errors.SparkFailed, errors.SourceFailed, errors.LoadError)
    return type(error) in kinds and not any(sign in error.what for sign in _SIGNS)


def _too_many(reason: errors.FlowError) -> errors.LoadError:
    return errors.LoadError(
        f"more than {MOST:,} messages of one batch cannot be loaded; the last: {reason.what}",
        state="the batch is not loaded; it comes again with the next start",
        next_step="fix transform_sql or the target's table; a smaller max_rows_per_batch= divides the batch",
    )


def _chosen(table: pa.Table, rows: Sequence[int]) -> Messages:
    import pyarrow as pa

    if isinstance(rows, range):
        chosen = table.slice(rows.start, len(rows))
    else:
        chosen = table.take(pa.array(rows, pa.int64()))
    batches: list[pa.RecordBatch] = chosen.combine_chunks().to_batches()
    return batches


def _unloadable(row: dict[str, Any], reason: errors.FlowError) -> Unloadable:
    from ematix_flow.engine.streams.batches import Unloadable

    # refused by the table, and not by Spark
    refused = isinstance(reason, errors.RowRejected) and not _is_sparks(reason.__cause__)
    return Unloadable("write" if refused else "transform", reason.what, row)


def _is_sparks(cause: BaseException | None) -> bool:
    return cause is not None and any(
        kind.__module__.split(".")[0] in ("pyspark", "py4j") for kind in type(cause).__mro__
    )


# ------------------------------------------------------------------ more than the driver holds


@dataclass(frozen=True)
class _Shares:
    """The messages of a large batch by the lowest bits of their hash."""

    frame: DataFrame

    @classmethod
    def of(cls, messages: DataFrame) -> _Shares:
        from pyspark.sql import functions as F

        hashed = F.pmod(F.xxhash64(*messages.columns), F.lit(1 << _BITS))
        return cls(messages.withColumn(_HASH, hashed))

    def at(self, prefix: int, depth: int) -> DataFrame:
        from pyspark.sql import functions as F

        return self.frame.where(F.pmod(F.col(_HASH), F.lit(1 << depth)) == prefix) if depth else self.frame


def _among_many(
    messages: DataFrame, attempt: Attempt, error: errors.FlowError
) -> tuple[list[Unloadable], Incoming]:
    import pyarrow as pa
    from pyspark.sql import functions as F

    shares = _Shares.of(messages)
    found: list[Unloadable] = []
    bad: list[int] = []
    left: list[tuple[int, int, errors.FlowError]] = [(0, 0, error)]
    while left:
        prefix, depth, reason = left.pop()
        share = shares.at(prefix, depth)
        small = few(share, min(share.limit(ROWS + 1).count(), ROWS + 1)) if depth else None
        if small is not None:
            table = pa.Table.from_batches(small)
            plain = table.drop_columns([_HASH])

            def try_rows(rows: Sequence[int], plain: pa.Table = plain) -> None:
                attempt(_chosen(plain, rows))

            refused = refused_rows(table.num_rows, try_rows, reason)
            bad += [table.column(_HASH)[row].as_py() for row in refused]
            found += [_unloadable(plain.slice(row, 1).to_pylist()[0], why) for row, why in refused.items()]
            if len(found) > MOST:
                raise _too_many(reason)
            continue
        for half in (prefix, prefix | (1 << depth)):
            failed = _failure_of(attempt, shares.at(half, depth + 1))
            if failed is not None:
                left.append((half, depth + 1, failed))
    while True:
        rest = shares.frame.where(~F.col(_HASH).isin(bad))
        failed = _failure_of(attempt, rest)
        if failed is None:
            return found, Incoming(rest.drop(_HASH))
        row = _first_conflict(rest, attempt)
        if row is None or len(found) >= MOST:
            raise failed
        bad.append(row.pop(_HASH))
        found.append(_unloadable(row, failed))


def _first_conflict(messages: DataFrame, attempt: Attempt) -> dict[str, Any] | None:
    """By the order of the hash, the first message that fails together with those before it."""
    from pyspark.sql import functions as F

    passing, failing = 0, 1 << _BITS  # the messages below the one pass, those below the other fail
    while failing - passing > 1:
        between = messages.where((F.col(_HASH) >= passing) & (F.col(_HASH) < failing)).limit(2).collect()
        if len(between) < 2:
            return between[0].asDict() if between else None
        middle = (passing + failing) // 2
        if _failure_of(attempt, messages.where(F.col(_HASH) < middle)) is None:
            passing = middle
        else:
            failing = middle
    return None


def _failure_of(attempt: Attempt, share: DataFrame) -> errors.FlowError | None:
    return _failure(lambda _: attempt(share.drop(_HASH)), ())
