"""Writes data to stdout: aligned tables for a person, JSON for a program."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any, TextIO

from ematix_flow.cli.terminal import write
from ematix_probe.cli.tables import GAP, Column, column_widths, render_cells
from ematix_probe.control_characters import escape_controls, mask_and_escape
from ematix_probe.redaction import mask, mask_all

OutputColumn = Column

STATUS_STYLES = {
    "succeeded": "green",
    "ok": "green",
    "skipped": "yellow",
    "locked": "yellow",
    "not run": "yellow",
    "running": "cyan",
    "interrupted": "yellow",
    "cancelled": "yellow",
    "failed": "bold red",
    "gave up": "bold red",
    "waiting": "yellow",
    "never": "dim",
}


def status_column(name: str = "status") -> OutputColumn:
    return OutputColumn(name, style=STATUS_STYLES.get)


def write_table(
    columns: Sequence[OutputColumn], rows: Sequence[Sequence[object]], *, stream: TextIO | None = None
) -> None:
    """Write the rows under their headings, at most as wide as the terminal."""
    stream = sys.stdout if stream is None else stream
    write(render_table(columns, rows, stream=stream), stream)


def render_table(columns: Sequence[OutputColumn], rows: Sequence[Sequence[object]], *, stream: TextIO) -> str:
    cells = [[_cell_text(value) for value in row] for row in rows]
    return render_cells(columns, cells, stream=stream, measure=_display_width)


def table_width(columns: Sequence[OutputColumn], rows: Sequence[Sequence[object]]) -> int:
    """The width of the table when nothing wraps. Values of a row beyond the columns are ignored."""
    cells = [[_cell_text(value) for value in row[: len(columns)]] for row in rows]
    return sum(column_widths(columns, cells, None, _display_width)) + len(GAP) * (len(columns) - 1)


def write_json(value: Any) -> None:
    """Write one JSON document to stdout, with every text in it masked."""
    write(json.dumps(mask_all(value), indent=2, ensure_ascii=False, default=str), sys.stdout)


def write_text(text: str) -> None:
    """Write lines to stdout that have no style: masked, and with control characters as codes."""
    write(mask_and_escape(text, keep="\n\t"), sys.stdout)


def format_count(number: int | None) -> str:
    return "" if number is None else f"{number:,}"


def format_size(number: float) -> str:
    """A number of bytes in kB or MB."""
    return f"{number / 1e6:,.1f} MB" if number >= 100_000 else f"{number / 1e3:,.1f} kB"


def _display_width(text: str) -> int:
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def _cell_text(value: object) -> str:
    return "" if value is None else escape_controls(mask(str(value)).replace("\n", " ").replace("\r", " "))
