"""Partition folders: ``column=value/`` names as Spark and Hive write them, and rows split by them."""

from __future__ import annotations

import datetime as dt
import decimal
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from ematix_flow.backends.objectstore.layout.table_paths import NULL_PARTITION
from ematix_flow.errors import PlanError, RowRejected, SourceFailed
from ematix_flow.spec.tables import ColumnSpec, TableSpec

if TYPE_CHECKING:
    import pyarrow as pa

_KINDS = (
    "small_int",
    "integer",
    "big_int",
    "numeric",
    "boolean",
    "text",
    "string",
    "date",
    "timestamp",
    "timestamp_tz",
    "uuid",
)
_ESCAPED = re.compile("[\x00-\x1f\x7f\"#%'*/:=?\\\\{\\[\\]^]")
_BEYOND_ASCII = re.compile("%[89A-Fa-f][0-9A-Fa-f]")
_MAX_VALUE_BYTES = 200  # a folder's name holds 255 bytes, column name and escapes included


def check_partition_columns(table: TableSpec, partition_by: Sequence[str]) -> None:
    """Refuse partition columns that do not exist, have no unique folder names, or leave no other column."""
    if len(set(partition_by)) != len(partition_by):
        raise PlanError(f"partition_by= of {table.label} names a column twice", where=table.where)
    for name in partition_by:
        if name not in table.column_names:
            raise PlanError(
                f"partition_by= of {table.label} names {name!r}, which is not one of its columns",
                where=table.where,
            )
        data_type = table.column(name).type
        if data_type.kind not in _KINDS:
            raise PlanError(
                f"partition_by= of {table.label} names {name!r}, and a {data_type} cannot be a folder's name",
                where=table.where,
                next_step="choose a text, whole number, date or boolean column",
            )


def partition_folder_name(column: str, value: Any) -> str:
    """``column=value``, percent-encoded where a path needs it. A null has a special name.

    A leading dot is encoded too: readers ignore folders whose name starts with one.
    """
    name = re.sub("^[.]", "%2E", _escape(column))
    return f"{name}={NULL_PARTITION if value is None else _escape(_value_text(column, value))}"


def partition_columns(name: str) -> list[str]:
    """The partition columns in a file's path below its table's folder; SourceFailed for a bad name."""
    columns: list[str] = []
    for part in _partition_parts(name):
        column = _decode_value(part.partition("=")[0], part, name)
        if not column:
            raise _bad_partition_error(part, name, "names no column")
        if column.lower() in (other.lower() for other in columns):
            raise _bad_partition_error(part, name, f"names the column {column!r} a second time")
        columns.append(column)
    return columns


def partition_values(name: str, partition_by: Sequence[str]) -> dict[str, str | None]:
    """The texts of the partition columns in a file's path below its table's folder.

    Some writers percent-encode the UTF-8 bytes of all but a few letters, others only what a path cannot hold.
    Both are decoded; a percent sign that begins no escape is kept.
    """
    texts = [_decode_value(part.partition("=")[2], part, name) for part in _partition_parts(name)]
    found = dict(zip(partition_columns(name), texts, strict=True))
    return {c: None if found.get(c) == NULL_PARTITION else found.get(c) for c in partition_by}


def spark_reads_partitions(name: str) -> bool:
    """Whether Spark reads the same values from the file's path. Spark decodes each escape as one character,
    so ``%C3%BC`` becomes two characters, and it refuses an empty value."""
    parts = _partition_parts(name)
    return all(_BEYOND_ASCII.search(part) is None and not part.endswith("=") for part in parts)


def _partition_parts(name: str) -> list[str]:
    return [part for part in name.split("/")[:-1] if "=" in part]


def _decode_value(text: str, part: str, name: str) -> str:
    try:
        decoded = unquote(text, errors="strict")
        decoded.encode()  # a name on a disk may be any bytes
    except UnicodeError as error:
        raise _bad_partition_error(part, name, "is not UTF-8") from error
    return decoded


def _bad_partition_error(part: str, name: str, why: str) -> SourceFailed:
    return SourceFailed(
        f"the folder {_display_name(part)} of the file {_display_name(name)} {why}, "
        "and cannot be read as a partition",
        next_step="rename the folder to  column=value, in UTF-8, percent-encoded or not",
    )


def _display_name(name: str) -> str:
    return repr(name.encode(errors="surrogateescape").decode(errors="backslashreplace"))


def split_by_partition(
    batch: pa.RecordBatch, partition_by: Sequence[str]
) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Split the batch by partition: (partition folder with a trailing slash, its rows)."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not partition_by or not batch.num_rows:
        yield "", batch
        return
    code = pa.array([0] * batch.num_rows, pa.int64())
    for name in partition_by:
        encoded = batch.column(name).dictionary_encode(null_encoding="encode")
        code = pc.add(pc.multiply(code, len(encoded.dictionary)), encoded.indices.cast(pa.int64()))
        code = code.dictionary_encode().indices.cast(pa.int64())  # keeps the numbers small
    order = pc.sort_indices(code)
    ordered, code = batch.take(order), code.take(order)
    changes = pc.indices_nonzero(pc.not_equal(code.slice(1), code.slice(0, len(code) - 1))).to_pylist()
    starts = [0, *(change + 1 for change in changes)]
    for start, end in zip(starts, [*starts[1:], batch.num_rows], strict=True):
        rows = ordered.slice(start, end - start)
        names = [partition_folder_name(name, rows.column(name)[0].as_py()) for name in partition_by]
        yield "/".join(names) + "/", rows


def parse_partition_value(text: str | None, column: ColumnSpec) -> Any:
    """Parse the text of a partition folder as a value of the column."""
    if text is None:
        return None
    kind = column.type.kind
    if kind in ("small_int", "integer", "big_int"):
        return int(text)
    if kind == "numeric":
        return decimal.Decimal(text)
    if kind == "boolean":
        return text.lower() == "true"
    if kind == "date":
        return dt.date.fromisoformat(text)
    if kind in ("timestamp", "timestamp_tz"):
        whole, _, fraction = text.partition(".")
        moment = dt.datetime.fromisoformat(f"{whole}.{fraction:0<6}" if fraction else whole)
        return moment.replace(tzinfo=dt.timezone.utc) if kind == "timestamp_tz" else moment
    return text


def _escape(text: str) -> str:
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", text)


def _value_text(column: str, value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dt.datetime):
        text = value.replace(tzinfo=None).isoformat(sep=" ")
        return text.rstrip("0") if "." in text else text
    if isinstance(value, decimal.Decimal):
        return format(value, "f")
    text = str(value)
    if not text or text == NULL_PARTITION:
        raise RowRejected(
            f"column {column!r}: the text {text!r} cannot be distinguished from a null "
            "in a partition folder's name",
            next_step="filter these rows in the source SQL, or leave the column out of partition_by=",
        )
    if len(_escape(text).encode()) > _MAX_VALUE_BYTES:
        raise RowRejected(
            f"column {column!r}: {text[:40]!r}… is too long for a partition folder's name",
            next_step="leave the column out of partition_by=",
        )
    return text
