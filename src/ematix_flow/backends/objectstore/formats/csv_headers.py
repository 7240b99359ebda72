"""Reads the beginning of a CSV file: its delimiter, its column names and its line end.

The driver reads one file at a time and caches the result until the file changes.
"""

from __future__ import annotations

import codecs
import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from ematix_flow.backends.objectstore.formats.compression import (
    codec_of,
    is_hadoop_codec,
    open_decompressed,
    require_text,
)
from ematix_flow.backends.objectstore.layout.source_files import SourceFile
from ematix_flow.errors import SourceFailed
from ematix_flow.spec.file_options import CsvReadOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_DELIMITERS = (",", ";", "\t", "|")
_REMEMBERED = 20_000
_BEGINNINGS = (64 * 1024, 8 * 1024 * 1024)  # bytes; more when the first record does not end in the first
_SPLIT_BYTES = 16 * 1024 * 1024  # a smaller file is read by one task anyway
_FIRST_LINES = 100


@dataclass(frozen=True)
class CsvShape:
    """How to read a CSV file. ``names`` is empty when the file has no record."""

    delimiter: str
    names: tuple[str, ...]
    line_end: str
    spans_lines: bool  # whether a cell may hold a line end; if not, the file can be read in pieces


def find_csv_shape(spark: SparkSession, file: SourceFile, reading: CsvReadOptions) -> CsvShape:
    """Return how to read a file; SourceFailed if its beginning is not valid CSV."""
    if is_hadoop_codec(file):
        require_text(file)
        rows = spark.read.text(file.uri).limit(_FIRST_LINES).collect()
        if file.size and not rows:
            raise SourceFailed(
                f"cannot read {file.display_name}: it is not compressed in Hadoop's format, "
                "and Spark finds no line in it",
                next_step="compress it with gzip, bz2 or zstd, or not at all",
            )
        beginning = "\n".join(row.value for row in rows)
        return _shape_of_beginning(file, beginning, reading, spans_lines=True)
    return inspect_csv_file(file, reading)


@lru_cache(_REMEMBERED)
def inspect_csv_file(file: SourceFile, reading: CsvReadOptions) -> CsvShape:
    try:
        require_text(file)
        shape = _shape_of_beginning(file, _read_beginning(file, reading), reading, spans_lines=True)
        if codec_of(file.name) is not None:
            return shape
        quotes = _count_mark(file, reading.quote.encode()) if file.is_local or file.size > _SPLIT_BYTES else 1
        if quotes % 2 and are_quotes_counted(file):
            require_closed_quotes(file, shape, reading)
        return replace(shape, spans_lines=file.size <= _SPLIT_BYTES or quotes > 0)
    except UnicodeDecodeError as error:
        raise not_utf8_error(file) from error
    except (OSError, EOFError) as error:
        raise unreadable_text_error(file, error) from error


def unreadable_text_error(file: SourceFile, error: Exception) -> SourceFailed:
    """The error for a text file that the system or the codec cannot read."""
    broken = codec_of(file.name) is not None
    return SourceFailed(
        f"cannot read {file.display_name}: "
        + ("it cannot be decompressed; it is damaged or incomplete" if broken else str(error)),
        next_step="write it again, or move it away" if broken else "check the file and the rights to it",
    )


def _read_beginning(file: SourceFile, reading: CsvReadOptions) -> str:
    """Read enough of the text to contain the first record."""
    text = ""
    for size in _BEGINNINGS:
        with open_decompressed(file) as stream:
            piece = stream.read(size)
        whole = len(piece) < size
        text = codecs.getincrementaldecoder("utf-8-sig")().decode(piece, final=whole)
        if whole or _holds_record(text, reading):
            break
    return text


def _holds_record(text: str, reading: CsvReadOptions) -> bool:
    """Whether the text holds a whole record: a line end ends a record when the quotes before it come in
    pairs."""
    quotes = 0
    for line in list(_lines(text, reading))[:-1]:
        quotes += line.count(reading.quote)
        if line.strip() and quotes % 2 == 0:
            return True
    return False


def _count_mark(file: SourceFile, mark: bytes) -> int:
    """How often the mark occurs in a local file; for a remote file, 0 or a number above 0."""
    count = 0
    with file.open() as stream:
        for piece in iter(lambda: stream.read(1 << 22), b""):
            count += piece.count(mark)
            if count and not file.is_local:
                break
    return count


def are_quotes_counted(file: SourceFile) -> bool:
    """Whether the driver counts the quotes of a file; Spark counts those of the other files."""
    return file.is_local and codec_of(file.name) is None


def quotes_come_in_pairs(reading: CsvReadOptions) -> bool:
    """Whether an odd number of quotes means that one is never closed."""
    return reading.terminator is None and reading.escape in (None, reading.quote)


def require_closed_quotes(file: SourceFile, shape: CsvShape, reading: CsvReadOptions) -> None:
    """Refuse a file with a quote that is never closed: readers would read one cell up to its end."""
    if not quotes_come_in_pairs(reading) or is_hadoop_codec(file):
        return
    with (
        open_decompressed(file) as stream,
        io.TextIOWrapper(stream, "utf-8-sig", "replace", newline="") as text,
    ):
        lines = (line for line in text if not (reading.comment and line.startswith(reading.comment)))
        records = csv.reader(lines, delimiter=shape.delimiter, quotechar=reading.quote, strict=True)
        ended = 0
        try:
            for _ in records:
                ended = records.line_num
        except csv.Error as error:
            if "unexpected end of data" in str(error):
                raise SourceFailed(
                    f"cannot read {file.display_name}: the quote that opens in line "
                    f"{ended + 1:,} is never closed",
                    next_step="close it, or double it if it is an ordinary character",
                ) from error


def _shape_of_beginning(
    file: SourceFile, beginning: str, reading: CsvReadOptions, *, spans_lines: bool
) -> CsvShape:
    try:
        given = [reading.delimiter] if reading.delimiter else _DELIMITERS
        found = {delimiter: _first_record(beginning, delimiter, reading) for delimiter in given}
    except csv.Error as error:
        raise SourceFailed(
            f"the first record of {file.display_name} cannot be read as CSV: {error}",
            next_step="check its quotes and line ends, or declare them with csv_read_options=",
        ) from error
    delimiter = max(given, key=lambda one: len(found[one]))
    cells = found[delimiter]
    old = "\r" in beginning and "\n" not in beginning
    line_end = reading.terminator or ("\r" if old else "\n")
    if not cells:
        return CsvShape(delimiter, (), line_end, spans_lines)
    if not reading.has_header:
        names = tuple(f"_c{number}" for number in range(len(cells)))
        return CsvShape(delimiter, names, line_end, spans_lines)
    _require_delimiter(file, cells, reading)
    if any("\0" in name for name in cells):
        raise SourceFailed(
            f"cannot read {file.display_name}: its header contains zero bytes, as UTF-16 text does",
            next_step=f"convert it, as in  iconv -f UTF-16LE -t UTF-8 '{file.display_name}'",
        )
    names = tuple(name or f"_c{number}" for number, name in enumerate(cells))
    twice = next((name for name in names if [n.lower() for n in names].count(name.lower()) > 1), None)
    if twice is not None:
        raise SourceFailed(
            f"the header of {file.display_name} names the column {twice!r} more than once",
            next_step="give each column its own name, or read it with "
            "csv_read_options={'has_header': False} if that line is not a header",
        )
    return CsvShape(delimiter, names, line_end, spans_lines)


def _require_delimiter(file: SourceFile, cells: Sequence[str], reading: CsvReadOptions) -> None:
    """Refuse a header that has one column only because the declared delimiter is wrong."""
    other = next((one for one in _DELIMITERS if len(cells) == 1 and one in cells[0]), None)
    if reading.delimiter is not None and other is not None:
        raise SourceFailed(
            f"with the delimiter {reading.delimiter!r} the header of {file.display_name} "
            f"is one column, {cells[0]!r}",
            next_step=f"its delimiter seems to be {other!r}: change or remove it in csv_read_options=",
        )


def _first_record(beginning: str, delimiter: str, reading: CsvReadOptions) -> list[str]:
    """The cells of the first record that is neither empty nor a comment."""
    doubled = reading.escape in (None, reading.quote)
    records = csv.reader(
        _lines(beginning, reading),
        delimiter=delimiter,
        quotechar=reading.quote,
        doublequote=doubled,
        escapechar=None if doubled else reading.escape,
    )
    return next((record for record in records if record), [])


def _lines(beginning: str, reading: CsvReadOptions) -> Iterator[str]:
    started = False  # a quoted cell may go on in a line that looks like a comment
    end = reading.terminator
    for line in io.StringIO(beginning, newline="") if end is None else beginning.split(end):
        if started or not (reading.comment and line.startswith(reading.comment)):
            started = started or bool(line.strip())
            yield line


def not_utf8_error(file: SourceFile) -> SourceFailed:
    """The error for a file that is not UTF-8, with the number of the first bad line."""
    number = 1
    with open_decompressed(file) as stream:
        for line in stream:
            try:
                line.decode("utf-8")
            except UnicodeDecodeError:
                break
            number += 1
    return SourceFailed(
        f"cannot read {file.display_name}: line {number:,} is not UTF-8",
        next_step=f"convert it, as in  iconv -f WINDOWS-1252 -t UTF-8 '{file.display_name}'  if "
        "Windows wrote it",
    )


def is_utf8(file: SourceFile) -> bool:
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        with open_decompressed(file) as stream:
            for piece in iter(lambda: stream.read(1 << 20), b""):
                decoder.decode(piece)
            decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return False
    return True
