"""Whether a stream's positions are still of the same places: a topic that was created again is another.

Ids are kept with the positions in the ledgers, and with the checkpoint for targets that keep no ledger. A
position that was written before ids were kept has none: the stream goes on, and learns them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ematix_flow.backends.messages.contract import ReadRequest, SparkStreamSource, StreamSource
from ematix_flow.engine.streams.checkpoint import Checkpoint

Ids = Mapping[str, str]
RecordedIds = Mapping[str, "str | None"]  # None: ledgers do not agree


def current_ids(sources: Sequence[StreamSource], readings: Sequence[ReadRequest]) -> list[Ids]:
    """The ids of the places of each source. Asked for first: what is replaced later is then noticed."""
    return [
        source.resource_ids(reading) if isinstance(source, SparkStreamSource) else {}
        for source, reading in zip(sources, readings, strict=True)
    ]


def recorded_ids(
    sources: Sequence[StreamSource], checkpoint: Checkpoint, remembered: Sequence[str | None]
) -> list[RecordedIds]:
    """The ids that they had, by the checkpoint and by what the ledgers remember."""
    found: list[RecordedIds] = []
    for place, (source, position) in enumerate(zip(sources, remembered, strict=True)):
        said = (
            source.resource_ids_in(position)
            if isinstance(source, SparkStreamSource) and position is not None
            else {}
        )
        found.append({**checkpoint.topic_ids(place), **said})
    return found


def replaced_topics(
    sources: Sequence[StreamSource],
    readings: Sequence[ReadRequest],
    before: Sequence[RecordedIds],
    now: Sequence[Ids],
) -> list[str]:
    """What to say of each place that was deleted and created again; DataLost unless loss is allowed."""
    return [
        each
        for source, reading, known, found in zip(sources, readings, before, now, strict=True)
        if isinstance(source, SparkStreamSource)
        for each in source.describe_recreated(known, found, reading)
    ]


def positions_with_ids(
    sources: Sequence[StreamSource], positions: Sequence[str | None], ids: Sequence[RecordedIds]
) -> tuple[str | None, ...]:
    """The positions, each with the ids of its places."""
    return tuple(
        source.with_resource_ids(position, known)
        if isinstance(source, SparkStreamSource) and position is not None
        else None
        for source, position, known in zip(sources, positions, ids, strict=True)
    )
