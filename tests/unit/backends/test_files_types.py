"""Types of columnar files: what a query sees of each, and the one type for what several files have."""

from __future__ import annotations

import pyarrow as pa
import pytest

from ematix_flow.backends.objectstore.formats.common_types import common_type
from ematix_flow.backends.objectstore.formats.footers import FileColumn, Footer
from ematix_flow.backends.objectstore.formats.stored_types import (
    query_type,
    reads_without_cast,
    storage_ddl,
    to_ddl,
)
from ematix_flow.backends.objectstore.layout.source_files import LocalFile, is_date_folder
from ematix_flow.backends.objectstore.spark.columnar_frames import table_columns
from ematix_flow.backends.spark_sql.row_refusals import find_refusal
from ematix_flow.errors import SourceFailed


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        (pa.int8(), pa.int64(), pa.int64()),
        (pa.int32(), pa.float64(), pa.float64()),
        (pa.int16(), pa.float32(), pa.float32()),
        (pa.int32(), pa.float32(), pa.float64()),
        (pa.int64(), pa.float64(), None),
        (pa.float32(), pa.float64(), pa.float64()),
        (pa.int64(), pa.decimal128(10, 2), pa.decimal128(21, 2)),
        (pa.decimal128(9, 2), pa.decimal128(12, 4), pa.decimal128(12, 4)),
        (pa.decimal128(38, 0), pa.decimal128(10, 2), None),
        (pa.decimal128(9, 2), pa.float64(), None),
        (pa.date32(), pa.timestamp("us"), pa.timestamp("us")),
        (pa.timestamp("us"), pa.timestamp("us", "UTC"), None),
        (pa.string(), pa.int64(), None),
        (pa.string(), pa.binary(), None),
        (pa.bool_(), pa.int8(), None),
        (pa.null(), pa.string(), pa.string()),
        (pa.list_(pa.int32()), pa.list_(pa.int64()), pa.list_(pa.int64())),
        (pa.list_(pa.int32()), pa.int32(), None),
        (
            pa.struct([("a", pa.int8()), ("b", pa.string())]),
            pa.struct([("A", pa.int16()), ("c", pa.bool_())]),
            pa.struct([("a", pa.int16()), ("b", pa.string()), ("c", pa.bool_())]),
        ),
        (pa.struct([("a", pa.int8())]), pa.struct([("a", pa.string())]), None),
        (
            pa.map_(pa.string(), pa.int8()),
            pa.map_(pa.string(), pa.int64()),
            pa.map_(pa.string(), pa.int64()),
        ),
    ],
)
def test_two_types_have_the_narrowest_that_loses_nothing_or_none(
    one: pa.DataType, other: pa.DataType, both: pa.DataType | None
) -> None:
    assert common_type(one, other) == both
    if not pa.types.is_struct(one):  # the names of fields are those that came first
        assert common_type(other, one) == both


@pytest.mark.parametrize(
    ("stored", "read", "seen_as"),
    [
        (pa.uint32(), "BIGINT", "BIGINT"),
        (pa.uint64(), "DECIMAL(20,0)", "DECIMAL(20,0)"),
        (pa.timestamp("ns", "UTC"), "BIGINT", "TIMESTAMP"),
        (pa.timestamp("ms"), "TIMESTAMP_NTZ", "TIMESTAMP_NTZ"),
        (pa.time32("ms"), "INT", "STRING"),
        (pa.uuid(), "BINARY", "STRING"),
        (pa.null(), "INT", "STRING"),
        (pa.list_(pa.struct([("odd `name", pa.uuid())])), "ARRAY<STRUCT<`odd ``name`: BINARY>>", None),
    ],
)
def test_a_type_is_read_in_a_form_that_spark_has(stored: pa.DataType, read: str, seen_as: str | None) -> None:
    assert storage_ddl(stored) == read
    assert seen_as is None or to_ddl(query_type(stored)) == seen_as
    assert reads_without_cast(stored, query_type(stored), widens=True) == (read == seen_as)


def footer(**columns: pa.DataType) -> Footer:
    return Footer(tuple(FileColumn(name, kind) for name, kind in columns.items()))


def test_columns_of_several_files_are_distinguished_by_name_and_merged() -> None:
    files = [LocalFile(name, f"/lake/{name}", 1, 1) for name in ("a", "b", "c")]
    found = table_columns(
        files,
        [footer(id=pa.int32()), footer(ID=pa.int64(), new=pa.string()), footer(id=pa.int16(), new=pa.null())],
    )
    assert [(column.name, column.type) for column in found] == [("id", pa.int64()), ("new", pa.string())]


def test_a_clash_names_the_column_and_both_files() -> None:
    files = [LocalFile(name, f"/lake/{name}", 1, 1) for name in ("a", "b")]
    nested = pa.struct([("x", pa.list_(pa.struct([("y", pa.int64())])))])
    other = pa.struct([("x", pa.list_(pa.struct([("y", pa.string())])))])
    with pytest.raises(SourceFailed) as caught:
        table_columns(files, [footer(o=nested), footer(o=other)])
    assert "column 'o.x[].y' is BIGINT in /lake/a and STRING in /lake/b" in caught.value.what


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("2026", True),
        ("11", True),
        ("2026-11", True),
        ("2026-11-15", True),
        ("2026-11-15T10", True),
        ("20261115", True),
        ("orders", False),
        ("2026-orders", False),
        ("v2", False),
        ("20261115x", False),
    ],
)
def test_dates_are_distinguished_from_names(name: str, expected: bool) -> None:
    assert is_date_folder(name) is expected


def test_a_refusal_is_found_in_what_spark_says() -> None:
    said = "[RAISED] <<ematix_flow source: column 'a' of \x02file:///x/a%20b\x02 is 5%20 ;; fix it>> SQL"
    error = find_refusal(said)
    assert error is not None
    assert (error.what, error.next_step) == ("column 'a' of /x/a b is 5%20", "fix it")
    assert find_refusal("something else") is None
