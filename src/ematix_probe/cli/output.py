"""Writes data to stdout: aligned tables for a person, JSON for a program; and small charts of characters."""

from __future__ import annotations

import datetime as dt
import json
import sys
import textwrap
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TextIO

import typer

from ematix_probe.cli.terminal import style_text, terminal_width, write
from ematix_probe.redaction import mask, mask_all
from ematix_probe.reports.text import STYLES

Output = Literal["text", "json"]
OutputOption = Annotated[
    Output, typer.Option("--output", "-o", help="Print text, or JSON for a program.", show_default=False)
]
_GAP = "  "
_MIN_WIDTH = 12
_BARS = "▁▂▃▄▅▆▇█"
_LETTERS = {"pass": ".", "warn": "w", "fail": "F", "error": "E", None: " "}


@dataclass(frozen=True)
class Column:
    """A column of a table. A column that ``wraps`` shrinks when the terminal is narrow."""

    name: str
    right: bool = False
    wraps: bool = False
    style: Callable[[str], str | None] | None = None


def verdict_column() -> Column:
    return Column("verdict", style=STYLES.get)


def write_json(value: Any) -> None:
    """Write one JSON document to stdout, with every text in it masked."""
    write(json.dumps(mask_all(value), indent=2, ensure_ascii=False, default=str))


def write_table(columns: Sequence[Column], rows: Sequence[Sequence[object]]) -> None:
    """Write the rows under their headings, at most as wide as the terminal. An empty column is left out."""
    cells = [["" if value is None else mask(_one_line(str(value))) for value in row] for row in rows]
    shown = [n for n in range(len(columns)) if not rows or any(row[n] for row in cells)]
    chosen = [columns[n] for n in shown]
    write(_render(chosen, [[row[n] for n in shown] for row in cells], sys.stdout))


def _render(columns: Sequence[Column], cells: Sequence[Sequence[str]], stream: TextIO) -> str:
    widths = _widths(columns, cells, terminal_width(stream))
    head = [_pad(column.name, width, column.right) for column, width in zip(columns, widths, strict=True)]
    lines = [style_text(_GAP.join(head).rstrip(), "bold", stream)]
    for row in cells:
        wrapped = [
            textwrap.wrap(text, width) or [""] if _cells(text) > width else [text]
            for text, width in zip(row, widths, strict=True)
        ]
        for number in range(max(map(len, wrapped))):
            out = []
            for column, parts, width, whole in zip(columns, wrapped, widths, row, strict=True):
                padded = _pad(parts[number] if number < len(parts) else "", width, column.right)
                out.append(style_text(padded, column.style(whole), stream) if column.style else padded)
            lines.append(_GAP.join(out).rstrip())
    return "\n".join(lines)


def _widths(columns: Sequence[Column], cells: Sequence[Sequence[str]], room: int | None) -> list[int]:
    texts = zip(*([column.name for column in columns], *cells), strict=True)
    widths = [max(map(_cells, column)) for column in texts]
    if room is None:
        return widths
    excess = sum(widths) + len(_GAP) * (len(widths) - 1) - room
    while excess > 0:
        giving = [n for n, column in enumerate(columns) if column.wraps and widths[n] > _MIN_WIDTH]
        if not giving:
            break
        widths[max(giving, key=lambda n: widths[n])] -= 1
        excess -= 1
    return widths


def _pad(text: str, width: int, right: bool) -> str:
    space = " " * (width - _cells(text))
    return space + text if right else text + space


def _cells(text: str) -> int:
    """The number of cells that a terminal takes for the text."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text)
    return len(text) + wide - sum(unicodedata.combining(c) != 0 for c in text)


def _one_line(text: str) -> str:
    return " ".join(text.split("\n")).replace("\r", " ").replace("\x1b", "\\x1b")


def sparkline(values: Sequence[float | None]) -> str:
    """A bar a value, from the least to the greatest; a blank where there is none."""
    known = [value for value in values if value is not None]
    if not known:
        return ""
    low, high = min(known), max(known)
    span = high - low
    steps = len(_BARS) - 1
    return "".join(
        " " if value is None else _BARS[round((value - low) / span * steps) if span else steps // 2]
        for value in values
    )


def verdict_strip(verdicts: Sequence[str | None]) -> str:
    """A letter a run: ``.`` passed, ``w`` warned, ``F`` failed, ``E`` error, blank for not there."""
    return "".join(_LETTERS.get(verdict, "?") for verdict in verdicts)


def format_number(value: float | None) -> str:
    if value is None:
        return ""
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.4g}" if abs(value) < 1e5 else f"{value:,.1f}"


def local_time(time: dt.datetime) -> str:
    return f"{time.astimezone():%Y-%m-%d %H:%M:%S}"


def local_zone() -> str:
    return dt.datetime.now().astimezone().tzname() or "local time"
