"""Ranges of offsets between two positions, split into shares for tasks.

`range_reader` reads them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ematix_flow.backends.kafka.cluster import Partition
from ematix_flow.backends.kafka.positions import data_lost_error

MIN_SPLIT_OFFSETS = 50_000  # fewer offsets are not worth a separate task


@dataclass(frozen=True)
class OffsetRange:
    """The messages of one partition whose offsets are at least ``begin`` and below ``end``."""

    topic: str
    partition: int
    begin: int
    end: int

    @property
    def topic_partition(self) -> Partition:
        return self.topic, self.partition

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"


def ranges_between(
    before: Mapping[Partition, int], after: Mapping[Partition, int], *, strict: bool
) -> list[OffsetRange]:
    """The ranges from one position to another. A new partition begins at its first offset.

    A partition whose end is before its beginning was created again: that is data loss with ``strict``, and
    an empty range without.
    """
    found = [OffsetRange(*place, before.get(place, 0), end) for place, end in sorted(after.items())]
    lost = [recreated_text(each, each.end, each.begin) for each in found if each.end < each.begin]
    if lost and strict:
        raise data_lost_error(lost)
    return [each for each in found if each.begin < each.end]


def split_ranges(
    ranges: Sequence[OffsetRange], most: int, *, whole: bool = False
) -> list[tuple[OffsetRange, ...]]:
    """The ranges in at most ``most`` shares of similar size, with each partition at most once per share.

    With ``whole`` no partition is cut, so that a task that forwards its messages keeps the order of a key.
    """
    if whole:
        return _assign_whole_partitions(ranges, most)
    total = sum(each.end - each.begin for each in ranges)
    count = max(1, min(most, max(math.ceil(total / MIN_SPLIT_OFFSETS), len(ranges))))
    size = math.ceil(total / count)
    out: list[tuple[OffsetRange, ...]] = []
    share: list[OffsetRange] = []
    room = size
    for each in ranges:
        at = each.begin
        while at < each.end:
            stop = min(each.end, at + room)
            share.append(OffsetRange(each.topic, each.partition, at, stop))
            room, at = room - (stop - at), stop
            if not room:
                out.append(tuple(share))
                share, room = [], size
    return [*out, tuple(share)] if share else out


def _assign_whole_partitions(ranges: Sequence[OffsetRange], most: int) -> list[tuple[OffsetRange, ...]]:
    """Give each range, the largest first, to the smallest share."""
    out: list[list[OffsetRange]] = [[] for _ in range(min(most, len(ranges)))]
    for each in sorted(ranges, key=lambda each: each.begin - each.end):
        min(out, key=lambda share: sum(r.end - r.begin for r in share)).append(each)
    return [tuple(share) for share in out]


def recreated_text(wanted: OffsetRange, ends: int, before: int) -> str:
    """A sentence about a partition that ends before an offset, because its topic was created again."""
    return f"{wanted} ends at {ends}, before {before}: it was created again"
