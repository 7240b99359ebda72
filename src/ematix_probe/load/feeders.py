"""Feeders: the rows whose values fill the templates of requests and the parameters of statements.

A feeder is a value that is declared; `Feeder.open` gives the rows to one process. Which row an arrival gets
follows from its number alone, so that several processes together use the rows as one process would.
"""

from __future__ import annotations

import csv
import dataclasses
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ematix_probe.errors import DeclarationError, ProbeError
from ematix_probe.load.templates import Row
from ematix_probe.location import caller_location
from ematix_probe.unknown_options import refuse_unknown_options

Order = Literal["sequential", "random", "once"]
ROWS_IN_MEMORY = 1_000_000  # what order="random" may read of a file


class OutOfRows(Exception):
    """A feeder with ``order="once"``, or an iterator, has no row left."""


class FeederFailed(ProbeError):
    """A row of a feeder cannot be read."""


@dataclass(frozen=True)
class Feeder:
    """Rows in memory, in a file, or from an iterator."""

    rows: Sequence[Row] = dataclasses.field(default=(), repr=False)
    path: Path | None = None
    iterator: Iterator[Row] | None = dataclasses.field(default=None, repr=False, compare=False)
    order: Order = "sequential"
    seed: int = 0
    columns: tuple[str, ...] | None = None  # None: not known before it is read

    @property
    def label(self) -> str:
        what = str(self.path) if self.path else "an iterator" if self.iterator else f"{len(self.rows)} rows"
        return f"{what}, {self.order}"

    def open(self, share: int = 0, shares: int = 1) -> Callable[[int], Row]:
        """A function from the number of an arrival to its row, for process ``share`` of ``shares``.

        The numbers that it is called with rise, and are ``share`` modulo ``shares``.
        """
        if self.iterator is not None:
            return _StreamedRows(self.iterator, share, shares).row
        if self.order == "random" or self.path is None:
            rows = self.rows if self.path is None else _all_rows(self.path)
            return self._of_list(rows)
        return _StreamedRows(_file_rows(self.path, endless=self.order == "sequential"), share, shares).row

    def _of_list(self, rows: Sequence[Row]) -> Callable[[int], Row]:
        count, seed = len(rows), self.seed
        if self.order == "random":
            return lambda n: rows[scattered(seed, n) % count]
        if self.order == "sequential":
            return lambda n: rows[n % count]

        def once(n: int) -> Row:
            if n >= count:
                raise OutOfRows(f"the feeder has no more than {count:,} rows")
            return rows[n]

        return once


def scattered(seed: int, n: int) -> int:
    """A number that looks random and depends on ``seed`` and ``n`` alone (SplitMix64)."""
    mixed = (
        seed * 0x9E3779B97F4A7C15 + (n + 1) * 0x9E3779B97F4A7C15 + 0xD1B54A32D192ED03
    ) & 0xFFFFFFFFFFFFFFFF
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
    return mixed ^ (mixed >> 31)


class _StreamedRows:
    """Rows in the order of a stream, of which this process uses its share."""

    def __init__(self, rows: Iterator[Row], share: int, shares: int) -> None:
        self._rows = itertools.islice(rows, share, None, shares)
        self._used = 0

    def row(self, n: int) -> Row:
        try:
            found = next(self._rows)
        except StopIteration:
            raise OutOfRows(f"the feeder had no row after {self._used:,}") from None
        except Exception as error:  # of the file, or of the iterator that the user wrote
            raise FeederFailed(f"the feeder failed after {self._used:,} rows: {_words(error)}") from error
        if not isinstance(found, Mapping):
            raise FeederFailed(f"the feeder's rows are mappings of a column and a value, not {found!r}")
        self._used += 1
        return found


def _words(error: Exception) -> str:
    """A message of this package, or of the user's code with its class."""
    return str(error) if type(error) is ValueError else f"{type(error).__name__}: {error}"


@refuse_unknown_options("feed()")
def feed(
    rows: Iterable[Row] | str | Path | Feeder, *, order: Order | None = None, seed: int | None = None
) -> Feeder:
    """A feeder over a list of mappings, a ``.csv`` or ``.jsonl`` file, or an iterator of mappings.

    ``order``: ``"sequential"`` begins again at the end, ``"random"`` draws by ``seed=``, ``"once"`` uses each
    row once and ends the load with the last.
    """
    where = caller_location()
    if isinstance(rows, Feeder):
        return rows
    chosen = order or "sequential"
    if chosen not in ("sequential", "random", "once"):
        raise DeclarationError(
            f'a feeder\'s order= is "sequential", "random" or "once", not {order!r}', where=where
        )
    if seed is not None and chosen != "random":
        raise DeclarationError('a feeder\'s seed= belongs to order="random"', where=where)
    if seed is not None and (not isinstance(seed, int) or isinstance(seed, bool)):
        raise DeclarationError(f"a feeder's seed= is a whole number, not {seed!r}", where=where)
    number = seed or 0
    if isinstance(rows, (str, Path)):
        return _file_feeder(Path(rows), chosen, number, where)
    if isinstance(rows, (list, tuple)):
        return _list_feeder(rows, chosen, number, where)
    if isinstance(rows, Iterator):
        if order is not None and order != "once":
            raise DeclarationError(
                f"rows of an iterator come in their order: order={order!r} needs a list or a file",
                where=where,
            )
        return Feeder(iterator=rows, order="once")
    raise DeclarationError(
        f"a feeder is a list of mappings, a .csv or .jsonl file, or an iterator of mappings, not {rows!r}",
        where=where,
    )


def _list_feeder(rows: Sequence[Row], order: Order, seed: int, where: str | None) -> Feeder:
    if not rows:
        raise DeclarationError("the feeder has no row", where=where)
    for row in rows:
        if not isinstance(row, Mapping):
            raise DeclarationError(
                f"a feeder's rows are mappings of a column and a value, not {row!r}", where=where
            )
    shared = set(rows[0]).intersection(*rows)
    return Feeder(
        tuple(rows), order=order, seed=seed, columns=tuple(str(name) for name in rows[0] if name in shared)
    )


def _file_feeder(path: Path, order: Order, seed: int, where: str | None) -> Feeder:
    if path.suffix.lower() not in (".csv", ".jsonl", ".ndjson"):
        raise DeclarationError(
            f"a feeder's file ends in .csv, .jsonl or .ndjson, not {path.name!r}", where=where
        )
    try:
        first = next(_file_rows(path, endless=False), None)
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise DeclarationError(
            f"the feeder's file {str(path)!r} cannot be read: {error}", where=where
        ) from None
    if first is None:
        raise DeclarationError(f"the feeder's file {str(path)!r} has no row", where=where)
    return Feeder(path=path.absolute(), order=order, seed=seed, columns=tuple(first))


def _file_rows(path: Path, *, endless: bool) -> Iterator[Row]:
    """The rows of a file, read as they are needed; ``endless`` begins again at its end."""
    while True:
        with path.open(encoding="utf-8-sig", newline="") as file:
            if path.suffix.lower() == ".csv":
                yield from csv.DictReader(file, restval="")
            else:
                for number, line in enumerate(file, 1):
                    if line.strip():
                        yield _json_row(line, number)
        if not endless:
            return


def _json_row(line: str, number: int) -> Row:
    try:
        row = json.loads(line)
    except ValueError:
        row = None
    if not isinstance(row, dict):
        raise ValueError(f"line {number} is no JSON object")
    return row


def _all_rows(path: Path) -> list[Row]:
    rows = list(itertools.islice(_file_rows(path, endless=False), ROWS_IN_MEMORY + 1))
    if len(rows) > ROWS_IN_MEMORY:
        raise DeclarationError(
            f"the feeder's file {str(path)!r} has more than {ROWS_IN_MEMORY:,} rows",
            next_step='use order="sequential", which does not keep the rows in memory',
        )
    return rows
