"""Iceberg's description of a data file, from the statistics that its task has reported."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping
from decimal import Context, Decimal
from typing import TYPE_CHECKING, Any

from ematix_flow.backends.lake.direct_table import WrittenFile

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.schema import Schema
    from pyiceberg.types import IcebergType

_EPOCH, _EPOCH_DAY = dt.datetime(1970, 1, 1), dt.date(1970, 1, 1)
_EXACT = Context(prec=38)


def data_file(file: WrittenFile, folder: str, schema: Schema, spec_id: int) -> DataFile:
    """The entry of a file without partitions. A column without statistics may hold anything."""
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
    from pyiceberg.typedef import Record

    found = json.loads(file.statistics, parse_float=Decimal)
    ids = {field.name: field.field_id for field in schema.fields}
    nulls = {ids[name]: count for name, count in found["nullCount"].items()}
    made = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=f"{folder}/{file.name}",
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=file.rows,
        file_size_in_bytes=file.bytes,
        value_counts=dict.fromkeys(nulls, file.rows),
        null_value_counts=nulls,
        lower_bounds=_bounds(found["minValues"], schema),
        upper_bounds=_bounds(found["maxValues"], schema),
    )
    made.spec_id = spec_id
    return made


def _bounds(values: Mapping[str, Any], schema: Schema) -> dict[int, bytes]:
    fields = {field.name: field for field in schema.fields}
    return {fields[name].field_id: _binary(fields[name].field_type, value) for name, value in values.items()}


def _binary(data_type: IcebergType, value: Any) -> bytes:
    from pyiceberg import types as t
    from pyiceberg.conversions import to_bytes

    if isinstance(data_type, (t.TimestampType, t.TimestamptzType)):
        moment = dt.datetime.fromisoformat(value.removesuffix("Z"))
        return to_bytes(data_type, (moment - _EPOCH) // dt.timedelta(microseconds=1))
    if isinstance(data_type, t.DateType):
        return to_bytes(data_type, (dt.date.fromisoformat(value) - _EPOCH_DAY).days)
    if isinstance(data_type, t.DecimalType):
        return to_bytes(
            data_type, Decimal(value).quantize(Decimal(1).scaleb(-data_type.scale), context=_EXACT)
        )
    assert isinstance(data_type, t.PrimitiveType)
    if isinstance(data_type, (t.FloatType, t.DoubleType)):
        return to_bytes(data_type, float(value))
    return to_bytes(data_type, value)
