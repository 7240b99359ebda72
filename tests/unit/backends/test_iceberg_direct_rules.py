"""Which Iceberg tables take files as they are, and how pyiceberg's metadata describes these files."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.conversions import from_bytes
from pyiceberg.io import FileIO
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortField, SortOrder
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType, TimeType

from ematix_flow.backends.iceberg.data_files import data_file
from ematix_flow.backends.iceberg.direct_rules import table_schema
from ematix_flow.backends.iceberg.direct_table import HadoopDirectTables
from ematix_flow.backends.iceberg.hadoop_commits import newest_version, publish_version, write_hint
from ematix_flow.backends.iceberg.table_files import TableFiles
from ematix_flow.backends.lake.direct_table import NO_VERSION, DirectTable, SparkNeeded, WrittenFile
from ematix_flow.backends.lake.file_statistics import file_statistics
from ematix_flow.backends.lake.journal import LakeCommit
from ematix_flow.backends.lake.table_format import ConcurrentCommit
from ematix_flow.backends.stores.local_store import LocalStore
from ematix_flow.spec.tables import ColumnSpec
from ematix_flow.spec.types import DataType
from ematix_flow.testing.samples import every_type, every_value

COLUMNS = (
    ColumnSpec("id", DataType("big_int"), nullable=True),
    ColumnSpec("name", DataType("text"), nullable=True),
)
SCHEMA = table_schema(COLUMNS)


def tables(root: Path) -> HadoopDirectTables:
    return HadoopDirectTables(LocalStore(str(root)), f"file:{root}")


def find(root: Path, columns: tuple[ColumnSpec, ...] = COLUMNS, *, replaces: bool = False) -> Any:
    return tables(root).find("t", columns, replaces=replaces)


def reason(root: Path, columns: tuple[ColumnSpec, ...] = COLUMNS) -> str:
    found = find(root, columns)
    assert isinstance(found, SparkNeeded)
    return found.reason


def create(
    root: Path,
    schema: Schema = SCHEMA,
    properties: dict[str, str] | None = None,
    spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC,
    order: SortOrder = UNSORTED_SORT_ORDER,
    more: Mapping[str, Any] = {},
) -> None:
    made = new_table_metadata(schema, spec, order, f"file:{root}/t", properties or {})
    text = json.dumps({**json.loads(made.model_dump_json()), **more})
    publish_version(LocalStore(str(root)), "t", 1, text)


def test_a_plain_table_takes_files(tmp_path: Path) -> None:
    create(tmp_path, properties={"owner": "me", "team.note": "x", "write.target-file-size-bytes": "1"})
    for replaces in (False, True):
        found = find(tmp_path, replaces=replaces)
        assert isinstance(found, DirectTable)
        assert (found.version, found.count_rows(), list(found.column_names)) == (1, 0, ["id", "name"])


def test_a_table_that_is_not_there_can_be_made(tmp_path: Path) -> None:
    found = find(tmp_path)
    assert isinstance(found, DirectTable)
    assert (found.version, found.count_rows(), found.newest_load()) == (NO_VERSION, 0, 0)
    assert found.is_current()
    create(tmp_path)
    assert not found.is_current()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("write.data.path", "s3://elsewhere"),
        ("write.metadata.path", "s3://elsewhere"),
        ("write.object-storage.enabled", "true"),
        ("write.format.default", "orc"),
        ("write.parquet.compression-codec", "gzip"),
        ("write.parquet.bloom-filter-enabled.column.id", "true"),
        ("write.metadata.metrics.column.name", "none"),
        ("write.wap.enabled", "true"),
        ("write.location-provider.impl", "their.Provider"),
        ("encryption.key-id", "k"),
    ],
)
def test_a_property_that_changes_files_needs_spark(tmp_path: Path, key: str, value: str) -> None:
    create(tmp_path, properties={key: value})
    assert reason(tmp_path) == f"the table has the property {key} = {value}"


def test_partitions_sort_orders_and_later_formats_need_spark(tmp_path: Path) -> None:
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "name"))
    create(tmp_path / "a", spec=spec)
    create(tmp_path / "b", order=SortOrder(SortField(1, IdentityTransform())))
    create(tmp_path / "c", more={"format-version": 3})
    found = [reason(tmp_path / name) for name in "abc"]
    assert found == [
        "the table is partitioned, or was",
        "the table has a sort order",
        "the table has format version 3",
    ]


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ((*COLUMNS, ColumnSpec("more", DataType("date"), nullable=True)), "the table has no column 'more'"),
        (
            (ColumnSpec("id", DataType("integer"), nullable=True),),
            "column 'id' is of type long, and the load",
        ),
        ((ColumnSpec("name", DataType("bytes"), nullable=True),), "column 'name' is of type string, and the"),
    ],
)
def test_other_columns_need_spark(tmp_path: Path, columns: tuple[ColumnSpec, ...], expected: str) -> None:
    create(tmp_path)
    assert reason(tmp_path, columns).startswith(expected)


def test_a_required_column_takes_only_loads_that_have_no_nulls(tmp_path: Path) -> None:
    create(tmp_path, Schema(NestedField(1, "id", LongType(), required=True)))
    loaded = ColumnSpec("id", DataType("big_int"), nullable=False)
    assert isinstance(find(tmp_path, (loaded,)), DirectTable)
    expected = "column 'id' takes no nulls, and the load may have some"
    assert reason(tmp_path, (ColumnSpec("id", DataType("big_int"), nullable=True),)) == expected
    assert reason(tmp_path, ()) == expected


def test_columns_of_other_types_are_shown_by_spark(tmp_path: Path) -> None:
    create(tmp_path / "a", Schema(NestedField(1, "id", TimeType())))
    create(tmp_path / "b")
    assert tables(tmp_path / "a").fields("t") is None
    found = tables(tmp_path / "b").fields("t")
    assert found is not None
    assert [(each.name, each.type, each.nullable) for each in found] == [
        ("id", "bigint", True),
        ("name", "string", True),
    ]


@pytest.mark.parametrize(
    "more",
    [
        {"a-later-feature": {"x": 1}},
        {"schemas": [{"type": "struct", "schema-id": 0, "fields": [
            {"id": 1, "name": "id", "required": False, "type": "long", "masked": True},
            {"id": 2, "name": "name", "required": False, "type": "string"},
        ]}]},
    ],
    ids=["table", "column"],
)  # fmt: skip
def test_metadata_that_pyiceberg_would_lose_needs_spark(tmp_path: Path, more: dict[str, Any]) -> None:
    create(tmp_path, more=more)
    assert reason(tmp_path) == "the table has metadata that pyiceberg does not know"


def test_spark_reads_what_pyiceberg_cannot(tmp_path: Path) -> None:
    create(tmp_path, more={"partition-specs": "none"})
    assert reason(tmp_path).startswith("pyiceberg cannot read the table: ")


@pytest.mark.parametrize("name", ["a%20b", "a#b", "a?b"])
def test_a_folder_whose_name_pyiceberg_may_misread_needs_spark(tmp_path: Path, name: str) -> None:
    create(tmp_path / name)
    assert "in the name of a folder" in reason(tmp_path / name)


def test_a_table_needs_spark_without_pyiceberg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create(tmp_path)
    monkeypatch.setitem(sys.modules, "pyiceberg", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert reason(tmp_path).startswith("pyiceberg is not installed (pip install")
    assert tables(tmp_path).fields("t") is None


# ------------------------------------------------------------------ versions


def test_the_newest_version_is_found_from_any_hint(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))
    assert newest_version(store, "t") is None
    for version in (1, 2, 3):
        publish_version(store, "t", version, "{}")
    hint = tmp_path / "t" / "metadata" / "version-hint.text"
    for text in (None, "1", "3", "7", "no number", ""):
        if text is not None:
            hint.write_text(text)
        assert newest_version(store, "t") == 3


@pytest.mark.parametrize("name", ["v2.metadata.json", "v2.gz.metadata.json", "v2.metadata.json.gz"])
def test_of_two_writers_of_a_version_the_second_fails(tmp_path: Path, name: str) -> None:
    create(tmp_path)
    found = find(tmp_path)
    (tmp_path / "t" / "metadata" / name).write_text("theirs")
    with pytest.raises(ConcurrentCommit):
        found.commit([], LakeCommit(1, "token"), replace=False)
    assert not found.is_current()
    left = {path.name for path in (tmp_path / "t" / "metadata").iterdir()}
    assert left == {"v1.metadata.json", name}
    assert (tmp_path / "t" / "metadata" / name).read_text() == "theirs"


def test_a_commit_that_a_rename_replaced_has_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Iceberg's own writer checks first, and renames then."""
    create(tmp_path)
    found, place = find(tmp_path), tmp_path / "t" / "metadata" / "v2.metadata.json"

    def publish_and_lose(store: LocalStore, folder: str, version: int, text: str) -> None:
        publish_version(store, folder, version, text)
        (tmp_path / "theirs").write_text("theirs")
        (tmp_path / "theirs").rename(place)

    monkeypatch.setattr("ematix_flow.backends.iceberg.direct_table.publish_version", publish_and_lose)
    with pytest.raises(ConcurrentCommit):
        found.commit([], LakeCommit(1, "token"), replace=False)
    assert place.read_text() == "theirs"


def test_the_checksum_of_an_older_hint_is_removed(tmp_path: Path) -> None:
    create(tmp_path)
    folder = tmp_path / "t" / "metadata"
    (folder / ".version-hint.text.crc").write_bytes(b"crc")
    write_hint(LocalStore(str(tmp_path)), "t", 1)
    assert (folder / "version-hint.text").read_text() == "1"
    assert {path.name for path in folder.iterdir()} == {"version-hint.text", "v1.metadata.json"}


def test_the_files_of_later_snapshots_are_known(tmp_path: Path) -> None:
    create(tmp_path)
    statistics = json.dumps({"numRecords": 1, "minValues": {}, "maxValues": {}, "nullCount": {}})
    for number in (1, 2):
        file = WrittenFile(f"f{number}.parquet", 1, 1, 1, statistics)
        find(tmp_path).commit([file], LakeCommit(number, f"token{number}"), replace=True)
    found = tables(tmp_path)
    assert find(tmp_path).newest_load() == 2
    assert found.committed_after("t", 3) == ""
    assert found.committed_after("none", NO_VERSION) == ""
    later = found.committed_after("t", 2)
    assert later is not None
    assert ("f1.parquet" in later, "f2.parquet" in later) == (False, True)
    (tmp_path / "t" / "metadata" / "v2.metadata.json").unlink()  # as a table may tell Iceberg to do
    all_files = found.committed_after("t", 2)
    assert all_files is not None and "f1.parquet" in all_files and "f2.parquet" in all_files


def test_files_outside_of_the_table_are_refused(tmp_path: Path) -> None:
    files: FileIO = TableFiles(LocalStore(str(tmp_path)), "t", f"file:{tmp_path}/t")
    with pytest.raises(ValueError, match="outside of the table's folder"):
        files.new_input(f"file:{tmp_path}/tables/x")


# ------------------------------------------------------------------ descriptions of files


def test_bounds_hold_every_value(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = every_type().columns
    schema = table_schema(columns)
    rows = pa.Table.from_pylist(
        every_value(), schema=pa.schema([pa.field(c.name, c.type.arrow()) for c in columns])
    )
    pq.write_table(rows, tmp_path / "f.parquet", store_decimal_as_integer=True)
    count, statistics = file_statistics(tmp_path / "f.parquet")
    made = data_file(WrittenFile("f.parquet", 9, count, 1, statistics), "file:/t/data", schema, 0)
    assert (made.file_path, made.record_count, made.file_size_in_bytes) == (
        "file:/t/data/f.parquet",
        count,
        9,
    )
    assert made.lower_bounds
    for field in schema.fields:
        column = rows.column(field.name)
        assert made.null_value_counts[field.field_id] == column.null_count
        assert made.value_counts[field.field_id] == count
        if field.field_id in made.lower_bounds:
            low, high = (
                from_bytes(field.field_type, bounds[field.field_id])  # type: ignore[arg-type]
                for bounds in (made.lower_bounds, made.upper_bounds)
            )
            values = [_as_iceberg(value, field) for value in column.to_pylist() if value is not None]
            assert low <= min(values)
            assert max(values) <= high


def _as_iceberg(value: Any, field: NestedField) -> Any:
    from pyiceberg.utils import datetime as times

    if str(field.field_type) == "date":
        return times.date_to_days(value)
    if str(field.field_type) == "timestamp":
        return times.datetime_to_micros(value)
    if str(field.field_type) == "timestamptz":
        return times.datetime_to_micros(value.replace(tzinfo=None))
    return value


def test_a_column_without_bounds_may_hold_anything() -> None:
    statistics = json.dumps({"numRecords": 2, "minValues": {}, "maxValues": {}, "nullCount": {"name": 1}})
    schema = Schema(NestedField(7, "name", StringType()))
    made = data_file(WrittenFile("f", 1, 2, 1, statistics), "x", schema, 0)
    assert (made.lower_bounds, made.upper_bounds) == ({}, {})
    assert (made.null_value_counts, made.value_counts) == ({7: 1}, {7: 2})
