"""The structure of a CSV file, from its bytes: how many records it has, and whether its quotes are in order.

DuckDB drops or joins some records whose quotes are not in order, without an error. It only gets files that
pass here, and must return as many records as are counted here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, BinaryIO

from ematix_flow.backends.objectstore.layout.source_files import SourceFile

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_PIECE = 4 * 1024 * 1024
_REMEMBERED = 4_096
_MARK = b"\xef\xbb\xbf"
_RETURN, _NEWLINE = 13, 10


@dataclass(frozen=True)
class CsvStructure:
    """``records`` counts the header too. ``spans_lines``: a quoted cell has a line end."""

    records: int
    spans_lines: bool


@lru_cache(_REMEMBERED)
def find_csv_structure(file: SourceFile, delimiter: str, quote: str) -> CsvStructure | None:
    """The structure of a local file; None if readers may disagree about it."""
    marks = delimiter.encode(), quote.encode()
    if any(len(mark) != 1 for mark in marks):
        return None
    with file.open() as stream:
        if stream.read(len(_MARK)) != _MARK:
            stream.seek(0)
        count = _Count(ord(marks[0]), ord(marks[1]))
        for piece in _read_pieces(stream):
            if not count.add(piece):
                return None
    return count.result()


@dataclass(frozen=True)
class _Piece:
    """The bytes from ``first`` to ``end``, with one more at each end if the file has it."""

    content: bytes
    first: int
    end: int


def _read_pieces(stream: BinaryIO) -> Iterator[_Piece]:
    before, here = b"", stream.read(_PIECE)
    while here:
        after = stream.read(_PIECE)
        yield _Piece(before + here + after[:1], len(before), len(before) + len(here))
        before, here = here[-1:], after


class _Count:
    """What was found in the pieces so far."""

    def __init__(self, delimiter: int, quote: int) -> None:
        import numpy as np

        self._quote = quote
        # each second quote begins a cell or follows another one; the others end a cell or precede one
        self._around = np.zeros(256, dtype=bool)
        self._around[[delimiter, quote, _RETURN, _NEWLINE]] = True
        self._quotes, self._records, self._last = 0, 0, _NEWLINE
        self._has_returns, self._has_bare_newlines, self._spans_lines = False, False, False

    def add(self, piece: _Piece) -> bool:
        """Whether readers agree about the piece."""
        import numpy as np

        data = np.frombuffer(piece.content, dtype=np.uint8)
        inner = data[piece.first : piece.end]
        begins_blank = not piece.first and piece.content[:1].isspace()
        if (
            begins_blank
            or 0 in inner
            or not self._add_returns(data, np.flatnonzero(inner == _RETURN) + piece.first)
        ):
            return False
        quotes = np.flatnonzero(inner == self._quote) + piece.first
        if not self._are_in_order(data, quotes):
            return False
        newlines = np.flatnonzero(inner == _NEWLINE) + piece.first
        before = data[newlines - 1]  # the file begins with another character
        self._has_bare_newlines = self._has_bare_newlines or bool((before != _RETURN).any())
        outside = (self._quotes + np.searchsorted(quotes, newlines)) % 2 == 0
        self._records += int(np.count_nonzero(before[outside] != _NEWLINE))  # no blank lines
        self._spans_lines = self._spans_lines or not outside.all()
        self._quotes += len(quotes)
        self._last = int(inner[-1])
        return True

    def result(self) -> CsvStructure | None:
        if self._quotes % 2 or (self._has_returns and self._has_bare_newlines):
            return None
        return CsvStructure(self._records + (self._last != _NEWLINE), self._spans_lines)

    def _add_returns(self, data: NDArray[np.uint8], at: NDArray[np.intp]) -> bool:
        """Each must be part of a line end of Windows. Spark takes blank lines of Windows for records."""
        if not len(at):
            return True
        self._has_returns = True
        if at[-1] + 1 == len(data) or (data[at + 1] != _NEWLINE).any():
            return False
        return not (data[at - 1] == _NEWLINE).any()

    def _are_in_order(self, data: NDArray[np.uint8], quotes: NDArray[np.intp]) -> bool:
        opening, closing = quotes[self._quotes % 2 :: 2], quotes[1 - self._quotes % 2 :: 2]
        if len(opening) and opening[0] == 0:  # the beginning of the file
            opening = opening[1:]
        closing = closing[closing + 1 < len(data)]  # not the end of the file
        return bool(self._around[data[opening - 1]].all() and self._around[data[closing + 1]].all())
