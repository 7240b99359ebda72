"""Reads the footers of Parquet and ORC files: their columns as stored, and whether Spark can read them.

The driver reads several footers at once and caches each until its file changes.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, BinaryIO

from ematix_flow.backends.objectstore.formats.stored_types import orc_date, orc_time
from ematix_flow.backends.objectstore.layout.source_files import SourceFile
from ematix_flow.errors import SourceFailed

if TYPE_CHECKING:
    import pyarrow as pa

_THREADS = 8
_REMEMBERED = 20_000
_MAX_DIGITS = 38
_SIGNATURE_BYTES = 28  # after a footer that is not encrypted itself, of a file with encrypted columns
_NOT_SPARKS_CODECS = ("BROTLI", "LZO")
_NOT_SPARKS_ENCODINGS = ("BYTE_STREAM_SPLIT",)


@dataclass(frozen=True)
class FileColumn:
    """A column of a file. If its values cannot be read, ``problem`` says why and the type is null."""

    name: str
    type: pa.DataType
    problem: str = ""


@dataclass(frozen=True)
class Footer:
    """The columns of a file. ``needs_arrow``: Spark's reader lacks its codec or an encoding."""

    columns: tuple[FileColumn, ...]
    needs_arrow: bool = False


def read_footers(files: Sequence[SourceFile], format: str) -> list[Footer]:
    """Read the footer of each file, in order; SourceFailed names a file without one."""
    with ThreadPoolExecutor(_THREADS) as threads:
        return list(threads.map(lambda file: read_footer(file, format), files))


@lru_cache(_REMEMBERED)
def read_footer(file: SourceFile, format: str) -> Footer:
    try:
        with file.open() as stream:
            found = _read_parquet_footer(stream) if format == "parquet" else _read_orc_footer(stream)
    except (OSError, ValueError, NotImplementedError) as error:
        raise _unreadable_error(file, error) from error
    names: dict[str, str] = {}
    for column in found.columns:
        twin = names.get(column.name.lower())
        if twin is not None:
            raise SourceFailed(
                f"{file.display_name} has the columns {twin!r} and {column.name!r}, "
                "which Spark SQL does not distinguish",
                next_step="give one of them another name",
            )
        names[column.name.lower()] = column.name
    return found


@lru_cache(1_000)
def _share_columns(columns: tuple[FileColumn, ...]) -> tuple[FileColumn, ...]:
    """Share one copy of equal columns: the files of a folder mostly have the same."""
    return columns


def _unreadable_error(file: SourceFile, error: Exception) -> SourceFailed:
    message = str(error)
    if isinstance(error, OSError) and error.errno is not None:
        what, step = error.strerror or message, "check the file and the rights of this user"
    elif "encrypted" in message:
        what = "its footer is encrypted"
        step = "encrypted Parquet is not read: keys cannot be configured. Decrypt it first"
    elif not file.size:
        what, step = "it is empty", "remove it, or write it again"
    else:
        what = "it is damaged, incomplete, or of another format"
        reason = message.splitlines()[0].rstrip(".") if message else "no reason"
        step = f"write it again, or move it away ({reason})"
    return SourceFailed(f"cannot read {file.display_name}: {what}", next_step=step)


# ------------------------------------------------------------------ Parquet


def _read_parquet_footer(stream: BinaryIO) -> Footer:
    import pyarrow.parquet as pq

    facts = pq.read_metadata(stream)
    leaves = (facts.schema.column(number) for number in range(len(facts.schema)))
    columns = [_parquet_column(field, leaves) for field in facts.schema.to_arrow_schema()]
    return Footer(
        _share_columns(tuple(columns)), not _has_encrypted_columns(stream, facts) and _needs_arrow(facts)
    )


def _parquet_column(field: pa.Field, leaves: Iterator[Any]) -> FileColumn:
    import pyarrow as pa

    problems: list[str] = []
    stored = _stored_type(field.type, leaves, problems)
    return FileColumn(field.name, pa.null(), problems[0]) if problems else FileColumn(field.name, stored)


def _stored_type(of: pa.DataType, leaves: Iterator[Any], problems: list[str]) -> pa.DataType:
    """The stored type, from the structure and its leaves; annotations of Arrow are ignored."""
    import pyarrow as pa
    import pyarrow.types as t

    if isinstance(of, pa.BaseExtensionType):
        return _stored_type(of.storage_type, leaves, problems)
    if t.is_struct(of):
        return pa.struct([(field.name, _stored_type(field.type, leaves, problems)) for field in of])
    if t.is_map(of):
        return pa.map_(
            _stored_type(of.key_type, leaves, problems), _stored_type(of.item_type, leaves, problems)
        )
    if t.is_list(of) or t.is_large_list(of) or t.is_fixed_size_list(of):
        return pa.list_(_stored_type(of.value_type, leaves, problems))
    leaf = next(leaves)
    stored = _leaf_type(leaf.physical_type, json.loads(leaf.logical_type.to_json()))
    if stored is None:
        problems.append(f"{leaf.logical_type} in Parquet")
    return stored or pa.null()


def _leaf_type(physical: str, logical: dict[str, Any]) -> pa.DataType | None:
    import pyarrow as pa

    kind = logical["Type"]
    unit = {"milliseconds": "ms", "microseconds": "us", "nanoseconds": "ns"}.get(logical.get("timeUnit", ""))
    if kind == "Int":
        sign = "" if logical["isSigned"] else "u"
        return getattr(pa, f"{sign}int{logical['bitWidth']}")()
    if kind == "Decimal":
        small = logical["precision"] <= _MAX_DIGITS
        return pa.decimal128(logical["precision"], logical["scale"]) if small else None
    if kind == "Timestamp":
        return pa.timestamp(unit, "UTC" if logical["isAdjustedToUTC"] else None)
    if kind == "Time":
        return pa.time32("ms") if unit == "ms" else pa.time64(unit)
    named = {
        "Date": pa.date32(),
        "Null": pa.null(),
        "UUID": pa.uuid(),
        "Float16": pa.float16(),
        "String": pa.string(),
        "Enum": pa.string(),
        "JSON": pa.string(),
        "BSON": pa.binary(),
    }
    plain = {
        "BOOLEAN": pa.bool_(),
        "INT32": pa.int32(),
        "INT64": pa.int64(),
        "INT96": pa.timestamp("us", "UTC"),
        "FLOAT": pa.float32(),
        "DOUBLE": pa.float64(),
        "BYTE_ARRAY": pa.binary(),
        "FIXED_LEN_BYTE_ARRAY": pa.binary(),
    }
    return named.get(kind) or (plain[physical] if kind in ("None", "Undefined") else None)


def _has_encrypted_columns(stream: BinaryIO, facts: Any) -> bool:
    stream.seek(-8, 2)
    (length,) = struct.unpack("<I", stream.read(4))
    return bool(length - facts.serialized_size == _SIGNATURE_BYTES)


def _needs_arrow(facts: Any) -> bool:
    """Whether Spark's reader lacks the codec or an encoding; writers choose them for a whole file."""
    if not facts.num_row_groups:
        return False
    first = facts.row_group(0)
    chunks = [first.column(number) for number in range(first.num_columns)]
    return any(
        chunk.compression in _NOT_SPARKS_CODECS or set(chunk.encodings) & set(_NOT_SPARKS_ENCODINGS)
        for chunk in chunks
    )


# ------------------------------------------------------------------ ORC


def _read_orc_footer(stream: BinaryIO) -> Footer:
    import pyarrow as pa
    from pyarrow import orc

    columns = []
    schema = orc.ORCFile(stream).schema
    for field in schema:
        stored = _orc_type(field.type)
        problem = "" if stored is not None else f"{field.type} in ORC"
        columns.append(FileColumn(field.name, stored if stored is not None else pa.null(), problem))
    # Spark's reader refuses timestamps, and takes a backtick for the end of a name: a`b would be a, or null
    return Footer(_share_columns(tuple(columns)), "tz=" in str(schema) or "`" in str(schema))


def _orc_type(of: pa.DataType) -> pa.DataType | None:
    import pyarrow as pa
    import pyarrow.types as t

    if t.is_struct(of):
        fields = [(field.name, _orc_type(field.type)) for field in of]
        return pa.struct(fields) if all(inner is not None for _, inner in fields) else None
    if t.is_map(of):
        key, item = _orc_type(of.key_type), _orc_type(of.item_type)
        return pa.map_(key, item) if key is not None and item is not None else None
    if t.is_list(of):
        item = _orc_type(of.value_type)
        return pa.list_(item) if item is not None else None
    if t.is_dictionary(of):
        return _orc_type(of.value_type)
    if t.is_timestamp(of):
        return pa.timestamp("us", "UTC") if of.tz else orc_time()
    if t.is_date(of):
        return orc_date()
    if t.is_large_string(of):
        return pa.string()
    if t.is_fixed_size_binary(of) or t.is_large_binary(of):
        return pa.binary()
    return None if t.is_union(of) else of
