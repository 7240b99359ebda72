"""Writes data to stdout: aligned tables for a person, JSON for a program; and small charts of characters."""

from __future__ import annotations

import datetime as dt
import json
import sys
import unicodedata
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import typer

from ematix_probe.cli.tables import Column as Column
from ematix_probe.cli.tables import render_cells
from ematix_probe.cli.terminal import write
from ematix_probe.control_characters import escape_controls
from ematix_probe.redaction import mask, mask_all
from ematix_probe.reports.text import STYLES

Output = Literal["text", "json"]
OutputOption = Annotated[
    Output, typer.Option("--output", "-o", help="Print text, or JSON for a program.", show_default=False)
]
_BARS = "▁▂▃▄▅▆▇█"
_LETTERS = {"pass": ".", "warn": "w", "fail": "F", "error": "E", None: " "}


def verdict_column() -> Column:
    return Column("verdict", style=STYLES.get)


def write_json(value: Any) -> None:
    """Write one JSON document to stdout, with every text in it masked."""
    write(json.dumps(mask_all(value), indent=2, ensure_ascii=False, default=str))


def write_table(columns: Sequence[Column], rows: Sequence[Sequence[object]]) -> None:
    """Write the rows under their headings, at most as wide as the terminal. An empty column is left out."""
    cells = [["" if value is None else _one_line(str(value)) for value in row] for row in rows]
    shown = [n for n in range(len(columns)) if not rows or any(row[n] for row in cells)]
    chosen = [columns[n] for n in shown]
    kept = [[row[n] for n in shown] for row in cells]
    write(render_cells(chosen, kept, stream=sys.stdout, measure=_cells))


def _cells(text: str) -> int:
    """The number of cells that a terminal takes for the text."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text)
    return len(text) + wide - sum(unicodedata.combining(c) != 0 for c in text)


def _one_line(text: str) -> str:
    return escape_controls(mask(text).replace("\n", " "))


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
