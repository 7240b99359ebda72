"""Explains Spark's errors about files that it cannot read, with what to do about the file."""

from __future__ import annotations

import re
from urllib.parse import unquote

from ematix_flow.errors import SourceFailed

_FILE = re.compile(r"Encountered error while reading file (?:file:(?://)?)?(\S+?)\.?\s")
_STEP = "fix the file, or move it away"
_LOG_STEP = "restore it from a backup: without it the table loses the changes that it records"
_NOT_LOOKED_AT = "column {column!r}: {value} is not of type {kind}, which was inferred from earlier lines"
_LOOK_AT_ALL = "raise schema_infer_max_records in json_read_options=, or leave it out to read all lines first"
_REASONS = (
    (
        re.compile(
            r"\[MALFORMED_CSV_RECORD\] Malformed CSV record: (.*?)(?: SQLSTATE: \w{5})?$", re.MULTILINE
        ),
        "the record {0!r} does not have as many cells as the header, or a quote is not closed",
        "fix it; csv_read_options= sets another delimiter, quote or escape, and truncated_rows_ok fills"
        " up what is missing",
    ),
    (
        re.compile(
            r"Cannot parse the field name '(?P<column>.*?)' and the value (?P<value>.*?) of the JSON token"
            r' type \w+ to target Spark data type "(?P<kind>.*?)"'
        ),
        _NOT_LOOKED_AT,
        _LOOK_AT_ALL,
    ),
    (
        re.compile(
            r"Cannot parse the value '(?P<value>.*?)' of the field `(?P<column>.*?)` as target spark"
            r" data type (?P<kind>\w+?)Type"
        ),
        _NOT_LOOKED_AT,
        _LOOK_AT_ALL,
    ),
    (
        re.compile(
            r"(?:Unescaped quote character .* inside|Unexpected character .* following) quoted value"
            r"(?:.*?line=(\d+))?",
            re.DOTALL,
        ),
        "a cell goes on after its closing quote, at or before line {0}",
        "double a quote that is part of the text, or set another quote or escape in csv_read_options=",
    ),
    (
        re.compile(r"\[(\w[^\]]*)\]\. Null File Decryptor"),
        "column {0!r} is encrypted",
        "leave the column out of the query: encrypted Parquet is not read, keys cannot be configured",
    ),
    (
        re.compile(
            r"FAILED_TO_UNCOMPRESS|[Cc]orrupt|CRC|[Cc]hecksum|[Dd]ecompress|Invalid (?:block|stream)"
            r"|InvalidProtocolBuffer|TProtocolException|can not read class"
        ),
        "its data is damaged",
        "write it again, or move it away",
    ),
    (
        re.compile(r"(?:Unexpected end of (?:ZLIB )?input stream|Truncated|premature EOF|EOFException)"),
        "it ends in the middle",
        "it is damaged or was not written to its end: write it again, or move it away",
    ),
    (
        re.compile(r"nanos > 999999999 or < 0"),
        "it holds a fraction of a second before 1970, which ORC readers read as different times",
        "write the file as Parquet, which has no such limit",
    ),
    (
        re.compile(r"\(Permission denied\)|AccessControlException"),
        "permission denied",
        "give this user the right to read it",
    ),
    (
        re.compile(r"FileNotFoundException|does not exist"),
        "it is no longer there",
        "run it again; if it is still missing, restore it from a backup: something other than the table's"
        " own programs removed it",
    ),
    (
        re.compile(
            r"ConvertNotSupportedException: column: \[(.*?)\], physicalType: (\w+), logicalType: (\S+)"
        ),
        "column {0!r} is stored as {1} and was to be read as {2}",
        "the file was changed while it was read: run it again",
    ),
)


def file_error(said: str, cause: str) -> SourceFailed | None:
    """The error of a file that Spark names. ``cause`` is used if the reason is unknown."""
    found = _FILE.search(said)
    if found is None:
        return None
    file = unquote(found[1])
    for pattern, words, step in _REASONS:
        reason = pattern.search(said)
        if reason is not None:
            step = _LOG_STEP if "/_delta_log/" in file else step
            return SourceFailed(
                f"cannot read {file}: {words.format(*reason.groups(), **reason.groupdict())}", next_step=step
            )
    return SourceFailed(f"cannot read {file}: {cause}", next_step=_STEP)
