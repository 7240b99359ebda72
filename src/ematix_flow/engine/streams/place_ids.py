"""Whether a stream's positions are still of the same places: a topic that was created again is another.

Ids are kept with the positions in the ledgers, and with the checkpoint for targets that keep no ledger. A
position that was written before ids were kept has none: the stream goes on, and learns them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ematix_flow.backends.streams import Reading, SparkStream, StreamSource
from ematix_flow.engine.streams.checkpoint import Checkpoint

Ids = Mapping[str, str]
IdsBefore = Mapping[str, "str | None"]  # None: ledgers do not agree


def ids_now(sources: Sequence[StreamSource], readings: Sequence[Reading]) -> list[Ids]:
    """The ids of the places of each source. Asked for first: what is replaced later is then noticed."""
    return [
        source.place_ids(reading) if isinstance(source, SparkStream) else {}
        for source, reading in zip(sources, readings, strict=True)
    ]


def ids_before(
    sources: Sequence[StreamSource], checkpoint: Checkpoint, remembered: Sequence[str | None]
) -> list[IdsBefore]:
    """The ids that they had, by the checkpoint and by what the ledgers remember."""
    found: list[IdsBefore] = []
    for place, (source, position) in enumerate(zip(sources, remembered, strict=True)):
        said = source.ids_in(position) if isinstance(source, SparkStream) and position is not None else {}
        found.append({**checkpoint.place_ids(place), **said})
    return found


def replaced_places(
    sources: Sequence[StreamSource],
    readings: Sequence[Reading],
    before: Sequence[IdsBefore],
    now: Sequence[Ids],
) -> list[str]:
    """What to say of each place that was deleted and created again; DataLost unless loss is allowed."""
    return [
        each
        for source, reading, known, found in zip(sources, readings, before, now, strict=True)
        if isinstance(source, SparkStream)
        for each in source.replaced(known, found, reading)
    ]


def with_ids(
    sources: Sequence[StreamSource], positions: Sequence[str | None], ids: Sequence[IdsBefore]
) -> tuple[str | None, ...]:
    """The positions, each with the ids of its places."""
    return tuple(
        source.with_ids(position, known) if isinstance(source, SparkStream) and position is not None else None
        for source, position, known in zip(sources, positions, ids, strict=True)
    )
