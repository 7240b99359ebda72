"""Which options of reading and writing files go together: checked when a pipeline is declared.

Pure: an option that a format does not know, or a value that would give unreadable files, is refused
here, before anything is read or written.
"""

from __future__ import annotations

import re
from typing import Any

from ematix_flow.errors import DeclarationError, did_you_mean
from ematix_flow.spec.location import SourceLocation
from ematix_flow.spec.pipelines import FileOptions

PARQUET_COMPRESSIONS = ("uncompressed", "snappy", "gzip", "zstd")

CSV_READ_OPTIONS: dict[str, type] = {
    "has_header": bool,
    "delimiter": str,
    "quote": str,
    "escape": str,
    "terminator": str,
    "comment": str,
    "null_regex": str,
    "truncated_rows_ok": bool,
    "schema_infer_max_records": int,
}
JSON_READ_OPTIONS: dict[str, type] = {"schema_infer_max_records": int, "batch_size": int}

_CSV_WRITE = ("csv_delimiter", "csv_header", "csv_quote", "csv_escape", "csv_null_value")
# option -> the formats it may stand beside. One declaration may carry the read options of both text
# formats, so that it fits a CSV and a JSON lines connection; those of the other format are not used.
_BELONGS = {
    "parquet_compression": ("parquet",),
    **dict.fromkeys(_CSV_WRITE, ("csv",)),
    "csv_read_options": ("csv", "json_lines"),
    "json_read_options": ("json_lines", "csv"),
}
_TYPE_NAMES = {bool: "True or False", str: "text", int: "a whole number"}


def check_file_options(format: str | None, options: FileOptions, where: SourceLocation | None = None) -> None:
    """Raise DeclarationError for an option that does not fit the format, or whose value makes no sense.

    ``format`` is None for a connection that holds no files: then no file option fits.
    """
    for option, formats in _BELONGS.items():
        value = getattr(options, option)
        if value is None or value == ():
            continue
        if format not in formats:
            holds = f"the connection's format is {format}" if format else "the connection holds no files"
            raise DeclarationError(
                f"{option}= is for {formats[0]} files, and {holds}",
                where=where,
                next_step=f"leave {option}= out, or use a connection with format={formats[0]!r}",
            )
    _check_compression(options.parquet_compression, where)
    _check_csv_writing(options, where)
    _check_read_options("csv_read_options", CSV_READ_OPTIONS, dict(options.csv_read_options), where)
    _check_read_options("json_read_options", JSON_READ_OPTIONS, dict(options.json_read_options), where)


def _check_compression(value: object, where: SourceLocation | None) -> None:
    if value is not None and value not in PARQUET_COMPRESSIONS:
        raise DeclarationError(
            f"parquet_compression={value!r} is unknown.{did_you_mean(str(value), PARQUET_COMPRESSIONS)}",
            where=where,
            next_step=f"choose one of {', '.join(PARQUET_COMPRESSIONS)}",
        )


def _check_csv_writing(options: FileOptions, where: SourceLocation | None) -> None:
    for option in ("csv_delimiter", "csv_quote", "csv_escape"):
        value = getattr(options, option)
        if value is not None:
            _require_character(option, value, where)
    if options.csv_header is not None and not isinstance(options.csv_header, bool):
        raise DeclarationError(f"csv_header= is True or False, not {options.csv_header!r}", where=where)
    delimiter, quote = options.csv_delimiter or ",", options.csv_quote or '"'
    escape = options.csv_escape or quote
    if delimiter in (quote, escape):
        other = "csv_quote" if delimiter == quote else "csv_escape"
        raise DeclarationError(
            f"csv_delimiter and {other} are both {delimiter!r}: no reader could tell them apart", where=where
        )
    null = options.csv_null_value
    if null is None:
        return
    if not isinstance(null, str):
        raise DeclarationError(f"csv_null_value= is text, not {null!r}", where=where)
    for characters, what in ((delimiter, "the delimiter"), (quote, "the quote"), ("\r\n", "a line end")):
        if any(character in null for character in characters):
            raise DeclarationError(
                f"csv_null_value={null!r} holds {what}: a null could not be read back", where=where
            )


def _check_read_options(
    name: str, known: dict[str, type], given: dict[str, Any], where: SourceLocation | None
) -> None:
    for key, value in given.items():
        if key not in known:
            raise DeclarationError(f"{name}= has no option {key!r}.{did_you_mean(key, known)}", where=where)
        wanted = known[key]
        fits = isinstance(value, wanted) and not (wanted is int and isinstance(value, bool))
        if not fits:
            raise DeclarationError(f"{name}= {key!r} is {_TYPE_NAMES[wanted]}, not {value!r}", where=where)
        if wanted is int and value < 1:
            raise DeclarationError(f"{name}= {key!r} must be 1 or more, not {value}", where=where)
        if key in ("delimiter", "quote", "escape", "comment"):
            _require_character(f"{name}= {key!r}", value, where)
        if key == "null_regex":
            _require_pattern(name, value, where)


def _require_character(option: str, value: object, where: SourceLocation | None) -> None:
    if not isinstance(value, str) or len(value) != 1 or not value.isascii() or value in "\r\n\0":
        raise DeclarationError(
            f"{option} is one ASCII character other than a line end, not {value!r}", where=where
        )


def _require_pattern(name: str, value: str, where: SourceLocation | None) -> None:
    try:
        re.compile(value)
    except re.error as error:
        raise DeclarationError(
            f"{name}= 'null_regex' is no regular expression: {error}", where=where
        ) from error
