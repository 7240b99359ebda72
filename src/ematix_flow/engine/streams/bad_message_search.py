"""Finds the few messages of a batch that make the whole batch fail, by bisection.

The search first finds messages that fail alone. If the rest still fails, it finds messages that fail only
together with earlier ones, such as two messages with the same key; the first of them stays. Spark narrows
down a batch that is too large for the driver, by shares of a hash that is the same each time the batch is
read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ematix_flow import errors
from ematix_flow.engine.streams.batch_report import RejectedMessage
from ematix_flow.engine.streams.incoming_batch import IncomingBatch, driver_batch
from ematix_flow.engine.streams.small_batches import MAX_ROWS, Messages, take_small_batch
from ematix_flow.spec.generated_names import internal_name

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame


MAX_REJECTED = 1_000  # with more, the cause is not a single message
_HASH = internal_name("hash")
_BITS = 62
# signs of a problem of the machine, the network or a permission: not caused by a row
_ENVIRONMENT_SIGNS = (
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

TryLoad = Callable[["Messages | DataFrame"], None]


def find_rejected_messages(
    incoming: IncomingBatch, attempt: TryLoad, error: errors.FlowError
) -> tuple[list[RejectedMessage], IncomingBatch]:
    """The messages with which ``attempt`` fails, and the rest, with which it does not.

    ``error`` is the error of all messages together.
    """
    small = incoming.small_batch()
    if small is None:
        small = take_small_batch(
            incoming.frame, min(incoming.frame.limit(MAX_ROWS + 1).count(), MAX_ROWS + 1)
        )
    if small is None:
        return _search_large_batch(incoming.frame, attempt, error)
    import pyarrow as pa

    table = pa.Table.from_batches(small)
    refused = find_rejected_rows(table.num_rows, lambda rows: attempt(_select_rows(table, rows)), error)
    rest = [row for row in range(table.num_rows) if row not in refused]
    rows = {row: table.slice(row, 1).to_pylist()[0] for row in refused}
    found = [_rejected_message(rows[row], reason) for row, reason in sorted(refused.items())]
    return found, driver_batch(incoming.frame.sparkSession, _select_rows(table, rest), table.schema)


def find_rejected_rows(
    total: int, attempt: Callable[[Sequence[int]], None], error: errors.FlowError
) -> dict[int, errors.FlowError]:
    """The numbers of the rows with which ``attempt`` fails, each with its reason. Without them it passes.

    A reason that need not be caused by a row counts only when other rows pass.
    """
    found: dict[int, errors.FlowError] = {}

    def refuse(row: int, reason: errors.FlowError) -> None:
        found[row] = reason
        if len(found) > MAX_REJECTED:
            raise _too_many_error(reason)

    if total == 1:
        reason = _try_rows(attempt, [0])
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
            failed = _try_rows(attempt, range(start, end))
            if failed is not None:
                shares.append((start, end, failed))
    rest = [row for row in range(total) if row not in found]
    failed = _try_rows(attempt, rest) if rest else None
    if failed is not None:
        for row, reason in _conflicting_rows(rest, attempt, failed):
            refuse(row, reason)
    unsure = next((reason for reason in found.values() if not isinstance(reason, errors.RowRejected)), None)
    if unsure is not None and len(found) == total:
        raise unsure
    return found


def _conflicting_rows(
    rows: Sequence[int], attempt: Callable[[Sequence[int]], None], error: errors.FlowError
) -> Iterator[tuple[int, errors.FlowError]]:
    """The rows that fail only together with earlier rows."""
    passed: list[int] = []
    shares: list[tuple[Sequence[int], errors.FlowError]] = [(rows, error)]
    while shares:
        share, reason = shares.pop()
        failed = _try_rows(attempt, [*passed, *share]) if share is not rows else error
        if failed is None:
            passed += share
        elif len(share) == 1:
            yield share[0], failed
        else:
            middle = len(share) // 2
            shares += [(share[middle:], reason), (share[:middle], reason)]


def _try_rows(attempt: Callable[[Sequence[int]], None], rows: Sequence[int]) -> errors.FlowError | None:
    try:
        attempt(rows)
    except errors.FlowError as failure:
        if not is_row_error(failure):
            raise
        return failure
    return None


def is_row_error(error: errors.FlowError) -> bool:
    """Whether single rows may cause this error. A lost server or a full disk is not caused by a row."""
    if isinstance(error, errors.RowRejected):
        return True
    kinds = (errors.SparkFailed, errors.SourceFailed, errors.LoadError)
    return type(error) in kinds and not any(sign in error.what for sign in _ENVIRONMENT_SIGNS)


def _too_many_error(reason: errors.FlowError) -> errors.LoadError:
    return errors.LoadError(
        f"more than {MAX_REJECTED:,} messages of one batch cannot be loaded; the last: {reason.what}",
        state="the batch is not loaded; it comes again with the next start",
        next_step="fix transform_sql or the target's table; a smaller max_rows_per_batch= divides the batch",
    )


def _select_rows(table: pa.Table, rows: Sequence[int]) -> Messages:
    import pyarrow as pa

    if isinstance(rows, range):
        chosen = table.slice(rows.start, len(rows))
    else:
        chosen = table.take(pa.array(rows, pa.int64()))
    batches: list[pa.RecordBatch] = chosen.combine_chunks().to_batches()
    return batches


def _rejected_message(row: dict[str, Any], reason: errors.FlowError) -> RejectedMessage:

    # rejected by the table, not by Spark
    refused = isinstance(reason, errors.RowRejected) and not _is_spark_error(reason.__cause__)
    return RejectedMessage("write" if refused else "transform", reason.what, row)


def _is_spark_error(cause: BaseException | None) -> bool:
    return cause is not None and any(
        kind.__module__.split(".")[0] in ("pyspark", "py4j") for kind in type(cause).__mro__
    )


# ------------------------------------------------------------------ more than the driver holds


@dataclass(frozen=True)
class _HashShares:
    """Shares of a large batch, by the lowest bits of each message's hash."""

    frame: DataFrame

    @classmethod
    def from_messages(cls, messages: DataFrame) -> _HashShares:
        from pyspark.sql import functions as F

        hashed = F.pmod(F.xxhash64(*messages.columns), F.lit(1 << _BITS))
        return cls(messages.withColumn(_HASH, hashed))

    def share(self, prefix: int, depth: int) -> DataFrame:
        from pyspark.sql import functions as F

        return self.frame.where(F.pmod(F.col(_HASH), F.lit(1 << depth)) == prefix) if depth else self.frame


def _search_large_batch(
    messages: DataFrame, attempt: TryLoad, error: errors.FlowError
) -> tuple[list[RejectedMessage], IncomingBatch]:
    import pyarrow as pa
    from pyspark.sql import functions as F

    shares = _HashShares.from_messages(messages)
    found: list[RejectedMessage] = []
    bad: list[int] = []
    left: list[tuple[int, int, errors.FlowError]] = [(0, 0, error)]
    while left:
        prefix, depth, reason = left.pop()
        share = shares.share(prefix, depth)
        small = (
            take_small_batch(share, min(share.limit(MAX_ROWS + 1).count(), MAX_ROWS + 1)) if depth else None
        )
        if small is not None:
            table = pa.Table.from_batches(small)
            plain = table.drop_columns([_HASH])

            def try_rows(rows: Sequence[int], plain: pa.Table = plain) -> None:
                attempt(_select_rows(plain, rows))

            refused = find_rejected_rows(table.num_rows, try_rows, reason)
            bad += [table.column(_HASH)[row].as_py() for row in refused]
            found += [
                _rejected_message(plain.slice(row, 1).to_pylist()[0], why) for row, why in refused.items()
            ]
            if len(found) > MAX_REJECTED:
                raise _too_many_error(reason)
            continue
        for half in (prefix, prefix | (1 << depth)):
            failed = _try_share(attempt, shares.share(half, depth + 1))
            if failed is not None:
                left.append((half, depth + 1, failed))
    while True:
        rest = shares.frame.where(~F.col(_HASH).isin(bad))
        failed = _try_share(attempt, rest)
        if failed is None:
            return found, IncomingBatch(rest.drop(_HASH))
        row = _first_conflict(rest, attempt)
        if row is None or len(found) >= MAX_REJECTED:
            raise failed
        bad.append(row.pop(_HASH))
        found.append(_rejected_message(row, failed))


def _first_conflict(messages: DataFrame, attempt: TryLoad) -> dict[str, Any] | None:
    """The first message in hash order that fails together with those before it."""
    from pyspark.sql import functions as F

    passing, failing = 0, 1 << _BITS  # hashes below `passing` pass, hashes below `failing` fail
    while failing - passing > 1:
        between = messages.where((F.col(_HASH) >= passing) & (F.col(_HASH) < failing)).limit(2).collect()
        if len(between) < 2:
            return between[0].asDict() if between else None
        middle = (passing + failing) // 2
        if _try_share(attempt, messages.where(F.col(_HASH) < middle)) is None:
            passing = middle
        else:
            failing = middle
    return None


def _try_share(attempt: TryLoad, share: DataFrame) -> errors.FlowError | None:
    return _try_rows(lambda _: attempt(share.drop(_HASH)), ())
