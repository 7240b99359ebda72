"""Which Delta tables take files as they are, decided from a log that delta-rs has written."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, Field, Schema
from deltalake.schema import PrimitiveType

from ematix_flow.backends.delta import direct_rules
from ematix_flow.backends.delta.direct_table import DeltaDirectTables, commits_after
from ematix_flow.backends.lake.direct_table import NO_VERSION, DirectTable, SparkNeeded, WrittenFile
from ematix_flow.backends.lake.journal import LakeCommit
from ematix_flow.backends.stores.local_store import LocalStore
from ematix_flow.spec.tables import ColumnSpec
from ematix_flow.spec.types import DataType

COLUMNS = (
    ColumnSpec("id", DataType("big_int"), nullable=True),
    ColumnSpec("name", DataType("text"), nullable=True),
)


def find(root: Path, columns: tuple[ColumnSpec, ...] = COLUMNS, *, replaces: bool = False) -> Any:
    return DeltaDirectTables(LocalStore(str(root))).find("t", columns, replaces=replaces)


def create(
    root: Path, fields: list[Field] | None = None, properties: dict[str, str] | None = None, **given: Any
) -> None:
    schema = Schema(fields or [Field("id", PrimitiveType("long")), Field("name", PrimitiveType("string"))])
    DeltaTable.create(
        str(root / "t"),
        schema,
        configuration=properties,  # type: ignore[arg-type]
        raise_if_key_not_exists=False,
        **given,
    )


def reason(root: Path, columns: tuple[ColumnSpec, ...] = COLUMNS, *, replaces: bool = False) -> str:
    found = find(root, columns, replaces=replaces)
    assert isinstance(found, SparkNeeded)
    return found.reason


@pytest.mark.parametrize("properties", [{}, {"delta.logRetentionDuration": "interval 1 day", "mine": "x"}])
def test_a_plain_table_takes_files(tmp_path: Path, properties: dict[str, str]) -> None:
    create(tmp_path, properties=properties)
    for replaces in (False, True):
        found = find(tmp_path, replaces=replaces)
        assert isinstance(found, DirectTable)
        assert (found.version, found.count_rows(), list(found.column_names)) == (0, 0, ["id", "name"])


@pytest.mark.parametrize(
    ("key", "value", "appends"),
    [
        ("delta.autoOptimize.autoCompact", "true", False),
        ("delta.somethingNew", "on", False),
        ("delta.appendOnly", "true", True),
    ],
)
def test_a_property_that_is_not_known_to_be_harmless_needs_spark(
    tmp_path: Path, key: str, value: str, appends: bool
) -> None:
    create(tmp_path, properties={key: value})
    assert isinstance(find(tmp_path), DirectTable) == appends
    assert reason(tmp_path, replaces=True) == f"the table has the property {key} = {value}"


@pytest.mark.parametrize("replaces", [False, True])
@pytest.mark.parametrize(
    "protocol",
    [
        *({"minReaderVersion": 1, "minWriterVersion": version} for version in range(1, 5)),
        *(
            {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": [feature]}
            for feature in sorted(direct_rules._WRITER_FEATURES - {"timestampNtz"})
        ),
        {
            "minReaderVersion": 3,
            "minWriterVersion": 7,
            "readerFeatures": sorted(direct_rules._READER_FEATURES),
            "writerFeatures": sorted(direct_rules._WRITER_FEATURES),
        },
    ],
    ids=str,
)
def test_delta_rs_commits_into_every_table_that_is_let_through(
    tmp_path: Path, protocol: dict[str, Any], replaces: bool
) -> None:
    create(tmp_path)
    write_protocol(tmp_path, protocol)
    table = find(tmp_path, replaces=replaces)
    assert isinstance(table, DirectTable)
    for number in (1, 2):
        file = WrittenFile(f"part-{number}.parquet", 100, 5, 0, '{"numRecords": 5}')
        table.commit([file], LakeCommit(number, f"token {number}"), replace=replaces)
        table.tidy()
    assert (table.version, table.count_rows()) == (2, 5 if replaces else 10)


@pytest.mark.parametrize(
    "protocol",
    [
        {"minReaderVersion": 2, "minWriterVersion": 5},
        {"minReaderVersion": 1, "minWriterVersion": 6},
        {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["somethingNew"]},
    ],
    ids=str,
)
def test_a_protocol_that_is_not_listed_needs_spark(tmp_path: Path, protocol: dict[str, Any]) -> None:
    create(tmp_path)
    write_protocol(tmp_path, protocol)
    assert isinstance(find(tmp_path), SparkNeeded)


def write_protocol(root: Path, protocol: dict[str, Any]) -> None:
    log = root / "t" / "_delta_log" / f"{0:020d}.json"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    lines = [{"protocol": protocol} if "protocol" in line else line for line in lines]
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        ({"delta.generationExpression": "id * 2"}, "column 'name' has delta.generationExpression"),
        ({"delta.identity.start": 1}, "column 'name' has delta.identity.start"),
        ({"__CHAR_VARCHAR_TYPE_STRING": "varchar(3)"}, "column 'name' has __CHAR_VARCHAR_TYPE_STRING"),
        ({"CURRENT_DEFAULT": "'x'"}, "column 'name' has CURRENT_DEFAULT"),
    ],
)
def test_a_column_with_a_rule_needs_spark(tmp_path: Path, metadata: dict[str, Any], said: str) -> None:
    named = Field("name", PrimitiveType("string"), metadata=metadata)
    create(tmp_path, [Field("id", PrimitiveType("long")), named])
    assert reason(tmp_path) == said


def test_a_comment_on_a_column_changes_nothing(tmp_path: Path) -> None:
    named = Field("name", PrimitiveType("string"), metadata={"comment": "of a person"})
    create(tmp_path, [Field("id", PrimitiveType("long")), named])
    assert isinstance(find(tmp_path), DirectTable)


@pytest.mark.parametrize(
    ("native", "declared", "fits"),
    [
        ("short", DataType("small_int"), True),
        ("byte", DataType("small_int"), False),
        ("long", DataType("integer"), False),
        ("decimal(9,2)", DataType("numeric", precision=9, scale=2), True),
        ("decimal(10,2)", DataType("numeric", precision=9, scale=2), False),
        ("timestamp", DataType("timestamp_tz"), True),
        ("timestamp", DataType("timestamp"), False),
        ("string", DataType("uuid"), True),
    ],
)
def test_types_must_be_equal(tmp_path: Path, native: str, declared: DataType, fits: bool) -> None:
    create(tmp_path, [Field("x", PrimitiveType(native))])
    assert isinstance(find(tmp_path, (ColumnSpec("x", declared, nullable=True),)), DirectTable) == fits


def test_a_required_column_takes_files_only_of_loads_that_refuse_nulls(tmp_path: Path) -> None:
    create(tmp_path, [Field("id", PrimitiveType("long"), nullable=False)])
    assert reason(tmp_path, COLUMNS[:1]) == "column 'id' takes no nulls, and the load may have some"
    assert isinstance(find(tmp_path, (ColumnSpec("id", DataType("big_int")),)), DirectTable)


def test_a_new_table_needs_spark_only_for_names_that_its_files_cannot_have(tmp_path: Path) -> None:
    found = find(tmp_path)
    assert isinstance(found, DirectTable)
    assert (found.version, found.count_rows(), found.is_current()) == (NO_VERSION, 0, True)
    odd = (ColumnSpec("a=b", DataType("text"), nullable=True),)
    assert reason(tmp_path, odd) == "the name of column 'a=b' needs column mapping"


def test_a_partitioned_or_unreadable_table_needs_spark(tmp_path: Path) -> None:
    create(tmp_path / "a", partition_by=["name"])
    assert reason(tmp_path / "a") == "the table is partitioned by name"
    log = tmp_path / "b" / "t" / "_delta_log"
    log.mkdir(parents=True)
    (log / f"{0:020d}.json").write_text("{}\n")
    assert reason(tmp_path / "b").startswith("delta-rs cannot read the table: ")


@pytest.mark.parametrize("name", ["a%20b", "back\\slash", "what?", "c#"])
def test_a_folder_whose_name_is_not_clear_in_a_uri_needs_spark(tmp_path: Path, name: str) -> None:
    create(tmp_path / "plain")
    (tmp_path / "plain").rename(tmp_path / name)
    assert "in the name of a folder" in reason(tmp_path / name)


def test_without_delta_rs_the_reason_names_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(tmp_path)
    monkeypatch.setitem(sys.modules, "deltalake", None)
    assert reason(tmp_path) == 'deltalake is not installed (pip install "ematix-flow-spark[delta]")'


def test_commits_after_a_version_are_unknown_when_the_log_is_shorter(tmp_path: Path) -> None:
    log = tmp_path / "t" / "_delta_log"
    log.mkdir(parents=True)
    for number in (3, 4, 5):
        (log / f"{number:020d}.json").write_text(str(number))
    store = LocalStore(str(tmp_path))
    assert commits_after(store, "t", 3) == "45"
    assert commits_after(store, "t", 5) == ""
    assert commits_after(store, "t", 1) is None
    assert commits_after(store, "t", 9) is None  # a new table that is younger than the version
