"""The messages whose rows fail an expectation, as dead letters: found in their batch by their names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ematix_flow.backends.messages.base import MESSAGE_DDL, PARTITION, POSITION, TOPIC
from ematix_flow.engine.execution import spark_tasks
from ematix_flow.engine.streams.batch_report import MessagePlace
from ematix_flow.engine.streams.decoding import LETTER_DDL, visit_rows
from ematix_flow.engine.streams.incoming_batch import IncomingBatch
from ematix_flow.engine.streams.message_names import ARRIVAL, message_names
from ematix_flow.errors import SourceFailed
from ematix_flow.state.dead_letters.base import bounded_reason

if TYPE_CHECKING:
    import pyarrow as pa

STAGE = "expectation"
_AT_ONCE = 500


def visit_failing_messages(
    incoming: IncomingBatch,
    rules: Mapping[str, str],
    take: Callable[[Sequence[Mapping[str, Any]]], None],
) -> None:
    """Pass the messages with these names to ``take``, each with stage and reason, in small chunks.

    ``rules`` has the rule that each message fails.
    """
    small = incoming.small_batch()
    found = 0
    if small is not None:
        for batch in _failing(small, rules):
            for start in range(0, batch.num_rows, _AT_ONCE):
                take(batch.slice(start, _AT_ONCE).to_pylist())
            found += batch.num_rows
    else:
        found = visit_rows(incoming.map(_failing_task(rules), LETTER_DDL), take)
    if found < len(rules):
        raise SourceFailed(
            f"{len(rules) - found:,} of {len(rules):,} messages whose rows fail expectations are no longer "
            "in their batch",
            state="the batch is not loaded; it comes again with the next start",
        )


def find_known_failing(
    incoming: IncomingBatch,
    letters: Mapping[MessagePlace, str],
    rules: Iterable[str],
    default_topic: str,
) -> dict[str, str]:
    """The names of the messages at these places, each with the rule that its row failed.

    ``letters`` has the stored reasons. A reason that names none of ``rules`` is passed on instead of a rule.
    A message without a topic is one of ``default_topic``.
    """
    by_reason = {bounded_reason(_reason(rule)): rule for rule in rules}
    known = {place: by_reason.get(reason, reason) for place, reason in letters.items()}
    small = incoming.small_batch()
    if small is not None:
        found = [_named(batch, known, default_topic) for batch in small]
        return {name: rule for each in found for name, rule in each.items()}
    rows = incoming.map(_naming_task(known, default_topic), "message string, rule string")
    return {row["message"]: row["rule"] for row in rows.toLocalIterator()}


def _reason(rule: str) -> str:
    return f"the row fails the expectation {rule!r}"


def _naming_task(known: Mapping[MessagePlace, str], default_topic: str) -> spark_tasks.ArrowFunction:
    def task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            found = _named(batch, known, default_topic)
            arrays = [pa.array(list(found), pa.string()), pa.array(list(found.values()), pa.string())]
            yield pa.RecordBatch.from_arrays(arrays, names=["message", "rule"])

    return task


def _named(batch: pa.RecordBatch, known: Mapping[MessagePlace, str], default_topic: str) -> dict[str, str]:
    columns = [batch.column(name).to_pylist() for name in (TOPIC, PARTITION, POSITION)]
    names = message_names(batch).to_pylist()
    places = [(topic or default_topic, partition, at) for topic, partition, at in zip(*columns, strict=True)]
    found = zip(names, places, strict=True)
    return {name: known[place] for name, place in found if place in known}


def _failing_task(rules: Mapping[str, str]) -> spark_tasks.ArrowFunction:
    def task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from _failing(batches, rules)

    return task


def _failing(batches: Iterable[pa.RecordBatch], rules: Mapping[str, str]) -> Iterator[pa.RecordBatch]:
    """The messages with these names, in the form of `LETTER_DDL`."""
    import pyarrow as pa

    columns = [field.split()[0] for field in MESSAGE_DDL.split(", ")]
    for batch in batches:
        failed = [rules.get(name) for name in message_names(batch).to_pylist()]
        where = pa.array([n for n, rule in enumerate(failed) if rule is not None], pa.int64())
        if not len(where):
            continue
        reasons = [_reason(rule) for rule in failed if rule is not None]
        spooled = ARRIVAL in batch.schema.names
        arrays = [batch.column(name).take(where) for name in columns]
        arrays += [pa.array(reasons, pa.string()), pa.repeat(pa.scalar(STAGE), len(where))]
        arrays.append(batch.column(ARRIVAL).take(where) if spooled else pa.nulls(len(where), pa.string()))
        yield pa.RecordBatch.from_arrays(arrays, names=[*columns, "reason", "stage", ARRIVAL])
