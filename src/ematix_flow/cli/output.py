"""Writes data to stdout: aligned tables for a person, JSON for a program."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

from ematix_flow.cli.terminal import style_text, terminal_width, write
from ematix_flow.spec.redaction import mask

_GAP = "  "
_MIN_COLUMN_WIDTH = 12

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


@dataclass(frozen=True)
class OutputColumn:
    """A column of a table. A column that ``wraps`` shrinks when the terminal is narrow."""

    name: str
    right: bool = False
    wraps: bool = False
    style: Callable[[str], str | None] | None = None


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
    widths = _column_widths(columns, cells, terminal_width(stream))
    head = [_pad(c.name, width, c.right) for c, width in zip(columns, widths, strict=True)]
    lines = [style_text(_GAP.join(head).rstrip(), "bold", stream)]
    for row in cells:
        lines += _row_lines(columns, row, widths, stream)
    return "\n".join(lines)


def table_width(columns: Sequence[OutputColumn], rows: Sequence[Sequence[object]]) -> int:
    """The width of the table when nothing wraps. Values of a row beyond the columns are ignored."""
    cells = [[_cell_text(value) for value in row[: len(columns)]] for row in rows]
    return sum(_column_widths(columns, cells, None)) + len(_GAP) * (len(columns) - 1)


def write_json(value: Any) -> None:
    """Write one JSON document to stdout, with every text in it masked."""
    write(json.dumps(mask_texts(value), indent=2, ensure_ascii=False, default=str), sys.stdout)


def write_text(text: str) -> None:
    write(mask(text), sys.stdout)


def format_count(number: int | None) -> str:
    return "" if number is None else f"{number:,}"


def format_size(number: float) -> str:
    """A number of bytes in kB or MB."""
    return f"{number / 1e6:,.1f} MB" if number >= 100_000 else f"{number / 1e3:,.1f} kB"


def _row_lines(
    columns: Sequence[OutputColumn], row: Sequence[str], widths: Sequence[int], stream: TextIO
) -> list[str]:
    wrapped = [
        textwrap.wrap(text, width, break_long_words=True) or [""] if _display_width(text) > width else [text]
        for text, width in zip(row, widths, strict=True)
    ]
    lines = []
    for number in range(max(map(len, wrapped))):
        out = []
        for column, parts, width, whole in zip(columns, wrapped, widths, row, strict=True):
            padded = _pad(parts[number] if number < len(parts) else "", width, column.right)
            out.append(style_text(padded, column.style(whole), stream) if column.style else padded)
        lines.append(_GAP.join(out).rstrip())
    return lines


def _column_widths(
    columns: Sequence[OutputColumn], cells: Sequence[Sequence[str]], room: int | None
) -> list[int]:
    texts = zip(*([c.name for c in columns], *cells), strict=True)
    widths = [max(map(_display_width, column)) for column in texts]
    if room is None:
        return widths
    excess = sum(widths) + len(_GAP) * (len(widths) - 1) - room
    giving = [i for i, c in enumerate(columns) if c.wraps and widths[i] > _MIN_COLUMN_WIDTH]
    while excess > 0 and giving:
        widest = max(giving, key=lambda i: widths[i])
        widths[widest] -= 1
        excess -= 1
        giving = [i for i in giving if widths[i] > _MIN_COLUMN_WIDTH]
    return widths


def _pad(text: str, width: int, right: bool) -> str:
    if text.isascii():
        return text.rjust(width) if right else text.ljust(width)
    space = " " * (width - _display_width(text))
    return space + text if right else text + space


def _display_width(text: str) -> int:
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def _cell_text(value: object) -> str:
    return "" if value is None else mask(str(value)).replace("\n", " ").replace("\r", " ")


def mask_texts(value: Any) -> Any:
    """The value with every text in it masked."""
    if isinstance(value, str):
        return mask(value)
    if isinstance(value, Mapping):
        return {str(k): mask_texts(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [mask_texts(item) for item in value]
    return value
