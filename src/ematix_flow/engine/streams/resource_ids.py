"""Ids of topics: they tell whether a topic was deleted and created again since its position was recorded.

Ledgers store the ids with the positions; the checkpoint stores them for targets without a ledger. An old
position has no ids: the stream resumes from it and records the ids it finds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ematix_flow.backends.messages.base import ReadRequest, SparkStreamSource, StreamSource
from ematix_flow.engine.streams.checkpoint import Checkpoint

Ids = Mapping[str, str]
RecordedIds = Mapping[str, "str | None"]  # None: ledgers do not agree


def current_ids(sources: Sequence[StreamSource], readings: Sequence[ReadRequest]) -> list[Ids]:
    """The current ids of the topics of each source. Call it first, so that a later replacement is noticed."""
    return [
        source.resource_ids(reading) if isinstance(source, SparkStreamSource) else {}
        for source, reading in zip(sources, readings, strict=True)
    ]


def recorded_ids(
    sources: Sequence[StreamSource], checkpoint: Checkpoint, remembered: Sequence[str | None]
) -> list[RecordedIds]:
    """The ids recorded in the checkpoint and in the ledgers."""
    found: list[RecordedIds] = []
    for place, (source, position) in enumerate(zip(sources, remembered, strict=True)):
        ids_in_position = (
            source.resource_ids_in(position)
            if isinstance(source, SparkStreamSource) and position is not None
            else {}
        )
        found.append({**checkpoint.resource_ids(place), **ids_in_position})
    return found


def replaced_topics(
    sources: Sequence[StreamSource],
    readings: Sequence[ReadRequest],
    before: Sequence[RecordedIds],
    now: Sequence[Ids],
) -> list[str]:
    """A sentence about each topic that was deleted and created again.

    Raises DataLost unless loss is allowed.
    """
    return [
        each
        for source, reading, known, found in zip(sources, readings, before, now, strict=True)
        if isinstance(source, SparkStreamSource)
        for each in source.describe_recreated(known, found, reading)
    ]


def positions_with_ids(
    sources: Sequence[StreamSource], positions: Sequence[str | None], ids: Sequence[RecordedIds]
) -> tuple[str | None, ...]:
    """The positions, each with the ids of its topics."""
    return tuple(
        source.with_resource_ids(position, known)
        if isinstance(source, SparkStreamSource) and position is not None
        else None
        for source, position, known in zip(sources, positions, ids, strict=True)
    )
