"""Aligned tables for a person, also for `ematix_flow`: columns, their widths, and lines that wrap."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TextIO

from ematix_probe.cli.terminal import style_text, terminal_width

GAP = "  "
_MIN_WIDTH = 12

Measure = Callable[[str], int]  # the number of cells that a terminal takes for a text


@dataclass(frozen=True)
class Column:
    """A column of a table. A column that ``wraps`` shrinks when the terminal is narrow."""

    name: str
    right: bool = False
    wraps: bool = False
    style: Callable[[str], str | None] | None = None


def render_cells(
    columns: Sequence[Column], cells: Sequence[Sequence[str]], *, stream: TextIO, measure: Measure
) -> str:
    """The cells, which are masked and have one line each, under their headings."""
    widths = column_widths(columns, cells, terminal_width(stream), measure)
    head = [_pad(c.name, width, c.right, measure) for c, width in zip(columns, widths, strict=True)]
    lines = [style_text(GAP.join(head).rstrip(), "bold", stream)]
    for row in cells:
        wrapped = [
            textwrap.wrap(text, width) or [""] if measure(text) > width else [text]
            for text, width in zip(row, widths, strict=True)
        ]
        for number in range(max(map(len, wrapped))):
            out = []
            for column, parts, width, whole in zip(columns, wrapped, widths, row, strict=True):
                padded = _pad(parts[number] if number < len(parts) else "", width, column.right, measure)
                out.append(style_text(padded, column.style(whole), stream) if column.style else padded)
            lines.append(GAP.join(out).rstrip())
    return "\n".join(lines)


def column_widths(
    columns: Sequence[Column], cells: Sequence[Sequence[str]], room: int | None, measure: Measure
) -> list[int]:
    """The widths that take at most ``room`` together, if columns that wrap can give enough."""
    texts = zip(*([c.name for c in columns], *cells), strict=True)
    widths = [max(map(measure, column)) for column in texts]
    if room is None:
        return widths
    excess = sum(widths) + len(GAP) * (len(widths) - 1) - room
    giving = [n for n, column in enumerate(columns) if column.wraps and widths[n] > _MIN_WIDTH]
    while excess > 0 and giving:
        widths[max(giving, key=lambda n: widths[n])] -= 1
        excess -= 1
        giving = [n for n in giving if widths[n] > _MIN_WIDTH]
    return widths


def _pad(text: str, width: int, right: bool, measure: Measure) -> str:
    space = " " * (width - measure(text))
    return space + text if right else text + space
