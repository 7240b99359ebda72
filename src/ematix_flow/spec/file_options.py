"""Checks the options for reading and writing files when a pipeline is declared.

An option that a format does not have, or a value that would produce unreadable files, is refused before
anything is read or written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ematix_flow.errors import DeclarationError, did_you_mean
from ematix_flow.spec import portable_regex
from ematix_flow.spec.location import SourceLocation
from ematix_flow.spec.pipelines import FileOptions

FILE_KINDS = ("object_store_local", "object_store_s3")
PARTITIONED_KINDS = (*FILE_KINDS, "delta_local", "delta_s3", "iceberg")
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

_CSV_WRITE_OPTIONS = ("csv_delimiter", "csv_header", "csv_quote", "csv_escape", "csv_null_value")
# option -> the formats that accept it. A declaration may have the read options of both text formats, so that
# it works with a CSV and with a JSON lines connection; options of the other format are not used.
_FORMATS_OF_OPTION = {
    "parquet_compression": ("parquet",),
    **dict.fromkeys(_CSV_WRITE_OPTIONS, ("csv",)),
    "csv_read_options": ("csv", "json_lines"),
    "json_read_options": ("json_lines", "csv"),
}
# option for writing -> option for reading: all files of a folder have one dialect
_READ_OPTION_OF = {
    "csv_delimiter": "delimiter",
    "csv_header": "has_header",
    "csv_quote": "quote",
    "csv_escape": "escape",
}
_TYPE_NAMES = {bool: "True or False", str: "text", int: "a whole number"}
_IGNORE_CASE = "(?i)"


@dataclass(frozen=True)
class CsvReadOptions:
    """How to read CSV files of other programs. None: detected from the files, or the usual value."""

    has_header: bool = True
    delimiter: str | None = None
    quote: str = '"'
    escape: str | None = None  # None: a quote inside quotes is written twice
    terminator: str | None = None  # None: a newline, with or without a carriage return
    comment: str | None = None
    null_regex: str | None = None  # cells that match it are null, in addition to empty cells
    truncated_rows_ok: bool = False
    schema_infer_max_records: int | None = None  # None: every record

    @classmethod
    def from_file_options(cls, options: FileOptions) -> CsvReadOptions:
        given = dict(options.csv_read_options)
        if given.get("terminator") in ("\n", "\r\n"):
            del given["terminator"]
        return cls(**given)


@dataclass(frozen=True)
class JsonReadOptions:
    """How to read JSON lines of other programs."""

    schema_infer_max_records: int | None = None  # None: every record
    batch_size: int | None = None  # rows that a task gets at once

    @classmethod
    def from_file_options(cls, options: FileOptions) -> JsonReadOptions:
        return cls(**dict(options.json_read_options))


def null_pattern(null_regex: str, flavour: str) -> str:
    """The pattern of null cells in the syntax of an engine. A leading ``(?i)`` is the only flag."""
    flag = _IGNORE_CASE if null_regex.startswith(_IGNORE_CASE) else ""
    return flag + portable_regex.translate(null_regex.removeprefix(_IGNORE_CASE), flavour)


# ------------------------------------------------------------------ checks


def check_file_options(format: str | None, options: FileOptions, where: SourceLocation | None = None) -> None:
    """Raise DeclarationError for an option that does not fit the format, or an invalid value.

    ``format`` is None for a connection that holds no files: then no file option fits.
    """
    for option, formats in _FORMATS_OF_OPTION.items():
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
    check_file_values(options, where)


def check_file_values(options: FileOptions, where: SourceLocation | None = None) -> None:
    """The checks that need no format, for a connection of which only the name is known."""
    _check_compression(options.parquet_compression, where)
    _check_csv_writing(options, where)
    read = dict(options.csv_read_options)
    _check_read_options("csv_read_options", CSV_READ_OPTIONS, read, where)
    _check_csv_reading(read, where)
    _check_read_options("json_read_options", JSON_READ_OPTIONS, dict(options.json_read_options), where)
    for option, key in _READ_OPTION_OF.items():
        written = getattr(options, option)
        if written is not None and key in read and written != read[key]:
            raise DeclarationError(
                f"{option}={written!r}, and csv_read_options= says {key!r}: {read[key]!r}: "
                "the files of one folder need the same value for writing and reading",
                where=where,
                next_step=f"leave one of them out: {option}= is taken from csv_read_options= by default",
            )


def check_folder_options(
    kind: str, prefix: str | None, partition_by: Sequence[str], where: SourceLocation | None = None
) -> None:
    """Refuse ``prefix`` and ``partition_by`` for a system without folders."""
    for option, given, kinds, what in (
        ("prefix", prefix is not None, FILE_KINDS, "files"),
        ("partition_by", bool(partition_by), PARTITIONED_KINDS, "files and lake tables"),
    ):
        if given and kind not in kinds:
            raise DeclarationError(
                f"{option}= is for {what}, and the connection is of kind {kind}",
                where=where,
                next_step=f"leave {option}= out" + (", and declare table=" if option == "prefix" else ""),
            )


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
    _require_distinct({"csv_delimiter": delimiter, "csv_quote": quote}, where)
    _require_distinct({"csv_delimiter": delimiter, "csv_escape": escape}, where)
    null = options.csv_null_value
    if null is None:
        return
    if not isinstance(null, str):
        raise DeclarationError(f"csv_null_value= is text, not {null!r}", where=where)
    for characters, what in ((delimiter, "the delimiter"), (quote, "the quote"), ("\r\n", "a line end")):
        if any(character in null for character in characters):
            raise DeclarationError(
                f"csv_null_value={null!r} contains {what}: a null could not be read back", where=where
            )


def _check_csv_reading(given: Mapping[str, Any], where: SourceLocation | None) -> None:
    """Require that the special characters differ; a quote may escape itself."""
    marks = {"delimiter": ",", "quote": '"', **given}
    for one, other in (
        ("delimiter", "quote"),
        ("delimiter", "escape"),
        ("delimiter", "comment"),
        ("delimiter", "terminator"),
        ("quote", "comment"),
        ("quote", "terminator"),
        ("escape", "comment"),
        ("escape", "terminator"),
        ("comment", "terminator"),
    ):
        if one in given or other in given:
            named = {f"csv_read_options= {key!r}": marks[key] for key in (one, other) if key in marks}
            _require_distinct(named, where)


def _require_distinct(marks: Mapping[str, str], where: SourceLocation | None) -> None:
    if len(marks) == 2 and len(set(marks.values())) == 1:
        one, other = marks
        raise DeclarationError(
            f"{one} and {other} are both {marks[one]!r}: no reader could tell them apart", where=where
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
        if (
            key == "terminator"
            and value != "\r\n"
            and (len(value) != 1 or not value.isascii() or value == "\0")
        ):
            raise DeclarationError(
                f"{name}= 'terminator' is one ASCII character, or '\\r\\n', not {value!r}", where=where
            )
        if key == "null_regex":
            _require_pattern(name, value, where)


def _require_character(option: str, value: object, where: SourceLocation | None) -> None:
    if not isinstance(value, str) or len(value) != 1 or not value.isascii() or value in "\r\n\0":
        raise DeclarationError(
            f"{option} is one ASCII character other than a line end, not {value!r}", where=where
        )


def _require_pattern(name: str, value: str, where: SourceLocation | None) -> None:
    try:
        portable_regex.check_pattern(value.removeprefix(_IGNORE_CASE))
    except DeclarationError as error:
        raise DeclarationError(
            f"{name}= 'null_regex': {error.what}",
            where=where,
            next_step="use letters, classes, groups, * + ? {n}, ^ and $; (?i) may come first",
        ) from None
