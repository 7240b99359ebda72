"""A histogram of high dynamic range (HDR): counts times in nanoseconds, in cells of bounded relative width.

Up to 2048 ns each value has its cell; above, each power of two has 1024 cells. A cell is at most 1/1024 as
wide as its values: three significant digits. A percentile is the upper end of its cell, so that it is never
understated, and at most 0.1 % too high; least and greatest value are exact. Histograms add up without loss.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

CELL_BITS = 10
RELATIVE_ERROR = 2.0**-CELL_BITS
COARSE_SHIFT = 4  # a coarse cell is 16 fine ones: at most 1/64 as wide as its values
COARSE_RELATIVE_ERROR = RELATIVE_ERROR * 2**COARSE_SHIFT


def cell_of(value: int) -> int:
    """The number of the cell of a value of at least 0."""
    shift = value.bit_length() - (CELL_BITS + 1)
    return value if shift <= 0 else (shift << CELL_BITS) + (value >> shift)


def upper_end(cell: int) -> int:
    """The greatest value of a cell."""
    shift = (cell >> CELL_BITS) - 1
    if shift <= 0:
        return cell
    return ((cell - (shift << CELL_BITS) + 1) << shift) - 1


def coarse_upper_end(cell: int) -> int:
    """The greatest value of a coarse cell, which is ``cell_of(value) >> COARSE_SHIFT``."""
    return upper_end(((cell + 1) << COARSE_SHIFT) - 1)


def nearest_rank(p: float, count: int) -> int:
    """The rank, from 1, of the percentile: the smallest value that a share ``p`` of all does not exceed."""
    return min(max(math.ceil(p * count - 1e-9), 1), count)


def value_at_rank(counts: Mapping[int, int], rank: int) -> int:
    """The cell that holds the value of this rank."""
    seen = 0
    for cell in sorted(counts):
        seen += counts[cell]
        if seen >= rank:
            return cell
    raise ValueError(f"there is no rank {rank} among {seen} values")


class Histogram:
    """Counts of values; ``counts`` maps the number of a cell to its count. Bounded by the number of cells."""

    __slots__ = ("count", "counts", "highest", "lowest", "squares", "total")

    def __init__(self, values: Iterable[int] = ()) -> None:
        self.counts: dict[int, int] = {}
        self.count = 0
        self.total = 0
        self.squares = 0
        self.lowest: int | None = None
        self.highest = 0
        for value in values:
            self.record(value)

    def record(self, value: int) -> int:
        """Count a value, a time below 0 as 0. Returns the cell."""
        if value < 0:
            value = 0
        shift = value.bit_length() - 11
        cell = value if shift <= 0 else (shift << 10) + (value >> shift)
        counts = self.counts
        counts[cell] = counts.get(cell, 0) + 1
        self.count += 1
        self.total += value
        self.squares += value * value
        if value > self.highest:
            self.highest = value
        if self.lowest is None or value < self.lowest:
            self.lowest = value
        return cell

    def add(self, other: Histogram) -> None:
        """Take in all values of another histogram."""
        for cell, count in other.counts.items():
            self.counts[cell] = self.counts.get(cell, 0) + count
        self.count += other.count
        self.total += other.total
        self.squares += other.squares
        self.highest = max(self.highest, other.highest)
        if other.lowest is not None:
            self.lowest = other.lowest if self.lowest is None else min(self.lowest, other.lowest)

    def percentile(self, p: float) -> int | None:
        """The percentile by nearest rank, ``p`` from 0 to 1; None without values."""
        if self.count == 0 or self.lowest is None:
            return None
        rank = nearest_rank(p, self.count)
        if rank == self.count:
            return self.highest
        if rank == 1:
            return self.lowest
        return min(upper_end(value_at_rank(self.counts, rank)), self.highest)

    def percentile_is_at_most(self, p: float, limit: int) -> bool:
        """Whether the percentile is at most ``limit``, as far as cells tell: its own cell counts as below."""
        rank = nearest_rank(p, self.count)
        if rank == self.count:
            return self.highest <= limit
        if rank == 1 and self.lowest is not None:
            return self.lowest <= limit
        return value_at_rank(self.counts, rank) <= cell_of(limit)

    def count_above(self, value: int) -> int:
        """How many values are above, as far as cells tell: those of the value's own cell are not counted."""
        limit = cell_of(value)
        return sum(count for cell, count in self.counts.items() if cell > limit)

    @property
    def mean(self) -> float | None:
        return self.total / self.count if self.count else None

    @property
    def deviation(self) -> float | None:
        """The standard deviation."""
        if not self.count:
            return None
        return math.sqrt(max(self.squares / self.count - (self.total / self.count) ** 2, 0.0))

    def to_json(self) -> dict[str, object]:
        return {
            "cells": sorted(self.counts.items()),
            "total": self.total,
            "squares": self.squares,
            "lowest": self.lowest,
            "highest": self.highest,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, object]) -> Histogram:
        made = cls()
        cells: Iterable[tuple[int, int]] = value["cells"]  # type: ignore[assignment]
        made.counts = {cell: count for cell, count in cells}
        made.count = sum(made.counts.values())
        made.total, made.squares = value["total"], value["squares"]  # type: ignore[assignment]
        made.lowest, made.highest = value["lowest"], value["highest"]  # type: ignore[assignment]
        return made
