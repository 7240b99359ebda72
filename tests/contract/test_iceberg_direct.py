"""What is Iceberg's own in loads without Spark: snapshots, versions, and which tables take files."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from ematix_flow import IcebergConnection, fault_points
from ematix_flow.backends.base import Backend, LoadPlan, StagedRows
from ematix_flow.backends.lake.target import LakeTarget
from ematix_flow.backends.maintenance import MaintenanceOptions
from ematix_flow.backends.registry import open_backend
from ematix_flow.spec.types import DataType
from ematix_flow.spec.watermarks import SourceRange
from ematix_flow.testing.loads import PIPELINE, TARGET, load_rows, new_load, prepare
from ematix_flow.testing.matched_loads import table_of
from tests.contract.direct_lakes import SMALL, IcebergLake, load, named, record_batch
from tests.lakes import without_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS = "id BIGINT, name STRING, _loaded_at TIMESTAMP, _batch_id STRING"


@pytest.fixture
def lake(tmp_path: Path, spark: SparkSession) -> IcebergLake:
    return IcebergLake(tmp_path / "lake", spark)


@pytest.fixture
def backend(lake: IcebergLake) -> Backend:
    return lake.backend()


@pytest.fixture
def target(lake: IcebergLake) -> LakeTarget:
    return lake.by_spark()


@pytest.fixture
def made(target: LakeTarget) -> LakeTarget:
    """The target with an empty table `SMALL`."""
    prepare(target, SMALL)
    return target


def metadata(lake: IcebergLake) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((lake.folder / "metadata" / lake.commit_files()[-1]).read_text())
    return found


def method(target: LakeTarget, mode: Any = "append") -> tuple[str, str]:
    found = target.commit_method(LoadPlan(SMALL, mode))
    assert found is not None
    return found


# ------------------------------------------------------------------ what is written


def test_a_snapshot_has_the_marks_by_which_loads_are_found(
    made: LakeTarget, backend: Backend, lake: IcebergLake
) -> None:
    load(without_spark(backend), named(1))
    load(without_spark(backend), named(2), "truncate")
    entries = sorted((lake.folder / "_ematix_flow").glob("*-*-*.json"))
    summaries = [snapshot["summary"] for snapshot in metadata(lake)["snapshots"]]
    assert [each["ematix_flow.token"] for each in summaries] == [e.stem.rpartition("-")[2] for e in entries]
    assert [each["ematix_flow.number"] for each in summaries] == ["1", "2"]
    assert [each["operation"] for each in summaries] == ["append", "overwrite"]
    assert (summaries[1]["total-records"], summaries[1]["deleted-records"]) == ("1", "1")


def test_files_have_the_ids_and_nullability_of_the_table(
    made: LakeTarget, backend: Backend, lake: IcebergLake
) -> None:
    lake.sql("ALTER TABLE {} DROP COLUMN name")
    lake.sql("ALTER TABLE {} ADD COLUMN name STRING")
    load(without_spark(backend), named(1))
    (file,) = lake.data_files()
    wanted = metadata(lake)["schemas"][-1]["fields"]
    schema = pq.read_schema(lake.folder / "data" / file)
    found = [(field.name, int(field.metadata[b"PARQUET:field_id"]), not field.nullable) for field in schema]
    assert found == [(field["name"], field["id"], field["required"]) for field in wanted]


def test_spark_goes_on_after_direct_loads_and_they_after_spark(
    made: LakeTarget, backend: Backend, lake: IcebergLake
) -> None:
    """Over more commits than manifests are kept apart for."""
    lake.sql("ALTER TABLE {} SET TBLPROPERTIES ('commit.manifest.min-count-to-merge' = '4')")
    direct = without_spark(backend)
    for number in range(5):
        load(direct, named(number))
    load_rows(made, new_load(SMALL, range=SourceRange("id", None), batch_key=None), named(100), change=False)
    lake.sql("DELETE FROM {} WHERE id = 1")
    for number in range(5, 8):
        load(direct, named(number))
    assert lake.ids() == [0, *range(2, 8), 100]
    assert sorted(lake.read_by_spark("small").column("id").to_pylist()) == lake.ids()
    assert len(lake.sql("SELECT * FROM {}.manifests")) < 5
    load(direct, named(9), "truncate")
    assert lake.read_by_spark("small").column("id").to_pylist() == [9]


def test_spark_compares_the_first_rows_of_an_incremental_load(made: LakeTarget) -> None:
    method = made.commit_method(LoadPlan(SMALL, "append", range=SourceRange("id", None)))
    assert method == ("spark", "an incremental load compares its first rows with those of the table")


def test_an_entry_without_its_mark_is_settled_by_the_snapshot(
    made: LakeTarget, backend: Backend, lake: IcebergLake
) -> None:
    load(without_spark(backend), named(1), batch_key="one")
    (mark,) = (lake.folder / "_ematix_flow").glob("*.done")
    lake.write_by_another(7)
    mark.unlink()
    assert load(without_spark(backend), named(1), batch_key="one").duplicate
    assert lake.ids() == [1, 7]


def test_columns_that_a_load_does_not_have_are_null(backend: Backend, lake: IcebergLake) -> None:
    columns = "more MAP<STRING, INT>, id BIGINT, _batch_id STRING, name STRING, _loaded_at TIMESTAMP, z INT"
    lake.by_spark().spark()
    lake.sql(f"CREATE TABLE {{}} ({columns}) USING iceberg")
    load(without_spark(backend), named(1))
    for read in (lake.read_by_spark, lake.read):
        (row,) = read("small").to_pylist()
        assert (row["more"], row["id"], row["name"], row["z"]) == (None, 1, "n1", None)


@pytest.mark.parametrize("version", [1, 2])
def test_tables_of_both_older_formats_take_files(backend: Backend, lake: IcebergLake, version: int) -> None:
    lake.sql(f"CREATE TABLE {{}} ({COLUMNS}) USING iceberg TBLPROPERTIES ('format-version' = '{version}')")
    direct = without_spark(backend)
    load(direct, named(1, 2))
    load(direct, named(3))
    lake.write_by_another(4)
    assert sorted(lake.read_by_spark("small").column("id").to_pylist()) == lake.ids() == [1, 2, 3, 4]
    assert load(direct, named(5), "truncate").rows.deleted == 4
    assert lake.read_by_spark("small").column("id").to_pylist() == lake.ids() == [5]
    assert metadata(lake)["format-version"] == version


def test_small_integers_are_stored_as_the_table_has_them(lake: IcebergLake, backend: Backend) -> None:
    table = table_of("numbers", {}, {"n": DataType("small_int")})
    load(without_spark(backend), [{"n": -5}], table=table)
    assert lake.read_by_spark("numbers").column("n").to_pylist() == [-5]
    assert lake.count_by_spark("numbers", "n = -5") == 1


def test_spark_reads_the_version_after_a_lost_hint(
    made: LakeTarget, backend: Backend, lake: IcebergLake
) -> None:
    """A run may die between its commit and the hint, or another writer's hint may be older."""
    load(without_spark(backend), named(1))
    hint = lake.folder / "metadata" / "version-hint.text"
    for old in ("1", None):
        hint.unlink() if old is None else hint.write_text(old)
        lake.write_by_another(7)
        load(without_spark(backend), named(8))
    assert lake.ids() == [1, 7, 7, 8, 8]
    assert len(lake.commit_files()) == 6
    assert hint.read_text() == "6"


def test_old_metadata_is_removed_as_the_table_says(
    made: LakeTarget, backend: Backend, lake: IcebergLake
) -> None:
    lake.sql(
        "ALTER TABLE {} SET TBLPROPERTIES ('write.metadata.delete-after-commit.enabled' = 'true',"
        " 'write.metadata.previous-versions-max' = '2')"
    )
    for number in range(5):
        load(without_spark(backend), named(number))
    assert lake.commit_files() == [f"v{number}.metadata.json" for number in (5, 6, 7)]
    assert len(lake.read_by_spark("small")) == 5


def test_maintenance_merges_the_files_of_loads_and_keeps_those_of_a_running_one(
    made: LakeTarget, backend: Backend, lake: IcebergLake
) -> None:
    direct = without_spark(backend)
    for number in range(3):
        load(direct, named(number))
    running = new_load(SMALL)
    staging = direct.create_staging(running, SMALL.arrow_schema())
    part = staging.write("part", [record_batch(named(9))])
    lake.by_spark().maintain(SMALL, MaintenanceOptions(retain=dt.timedelta(0), force=True))
    assert len(lake.files_of("small")) == 1
    assert direct.apply(running, StagedRows(staging, (part,))).rows.inserted == 1
    assert lake.ids() == [0, 1, 2, 9]


# ------------------------------------------------------------------ tables that need Spark

TABLES = {
    "the table is partitioned, or was": f"({COLUMNS}) USING iceberg PARTITIONED BY (name)",
    "the table has format version 3": (f"({COLUMNS}) USING iceberg TBLPROPERTIES ('format-version' = '3')"),
    "the table has the property write.format.default = avro": (
        f"({COLUMNS}) USING iceberg TBLPROPERTIES ('write.format.default' = 'avro')"
    ),
    "column 'name' takes no nulls, and the load may have some": (
        f"({COLUMNS.replace('STRING,', 'STRING NOT NULL,', 1)}) USING iceberg"
    ),
    "the metadata of the table is compressed, or has just been replaced": (
        f"({COLUMNS}) USING iceberg TBLPROPERTIES ('write.metadata.compression-codec' = 'gzip')"
    ),
}


@pytest.mark.parametrize(("reason", "definition"), TABLES.items())
def test_spark_writes_into_a_table_that_asks_more_than_files(
    target: LakeTarget, lake: IcebergLake, reason: str, definition: str
) -> None:
    lake.sql(f"CREATE TABLE {{}} {definition}")
    assert method(target) == ("spark", reason)
    assert load(target, named(1, 2)).rows.inserted == 2
    assert len(lake.read_by_spark("small")) == 2


def test_spark_writes_in_the_sort_order_of_a_table(
    made: LakeTarget, target: LakeTarget, lake: IcebergLake
) -> None:
    lake.sql("ALTER TABLE {} WRITE ORDERED BY id")
    assert method(target) == ("spark", "the table has a sort order")


def test_a_refresh_of_a_table_with_deleted_rows_needs_spark(
    made: LakeTarget, backend: Backend, lake: IcebergLake
) -> None:
    """An append does not: it leaves the files that say which rows are deleted."""
    lake.sql("ALTER TABLE {} SET TBLPROPERTIES ('write.delete.mode' = 'merge-on-read')")
    load(without_spark(backend), named(1, 2))
    lake.sql("DELETE FROM {} WHERE id = 1")
    load(without_spark(backend), named(3))
    assert sorted(lake.read_by_spark("small").column("id").to_pylist()) == lake.ids() == [2, 3]
    assert method(made, "truncate") == ("spark", "the table has files of deleted rows")
    assert load(made, named(4), "truncate").rows.deleted == 2
    assert lake.ids() == [4]


def test_branches_and_tags_keep_what_they_had(made: LakeTarget, backend: Backend, lake: IcebergLake) -> None:
    load(without_spark(backend), named(1))
    lake.sql("ALTER TABLE {} CREATE TAG first")
    lake.sql("ALTER TABLE {} CREATE BRANCH audit")
    load(without_spark(backend), named(2), "truncate")
    assert [row["id"] for row in lake.sql("SELECT id FROM {} VERSION AS OF 'first'")] == [1]
    assert [row["id"] for row in lake.sql("SELECT id FROM {} VERSION AS OF 'audit'")] == [1]
    assert lake.ids() == [2]


def test_spark_commits_when_a_column_was_replaced_while_tasks_wrote(
    made: LakeTarget, lake: IcebergLake
) -> None:
    """The files have the id of the column that is gone: its values would be lost."""

    def change() -> None:
        lake.sql("ALTER TABLE {} DROP COLUMN name")
        lake.sql("ALTER TABLE {} ADD COLUMN name STRING")

    with fault_points.inject("apply.began", change):
        assert load(made, named(1)).rows.inserted == 1
    assert [row["name"] for row in lake.read_by_spark("small").to_pylist()] == ["n1"]
    assert not lake.data_files()
    assert made.sweep_staging(PIPELINE, TARGET) == []


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"catalog_type": "rest", "uri": "http://127.0.0.1:1"}, "tables of a rest catalog are committed by"),
        ({"catalog_type": "hadoop", "properties": {"lock-impl": "x"}}, "the connection has properties for"),
        ({"catalog_type": "hadoop", "staging": "/tmp/elsewhere"}, "the connection has its staging outside"),
        (
            {"catalog_type": "hadoop", "warehouse": "s3://bucket/lake", "region": "eu-west-1"},
            "tables in a bucket without a catalog are committed by Spark",
        ),
    ],
)
def test_spark_commits_where_pyiceberg_does_not(tmp_path: Path, fields: dict[str, Any], reason: str) -> None:
    given = {"warehouse": str(tmp_path), **fields}
    found = open_backend(IcebergConnection(name="lake", **given)).target()
    assert isinstance(found, LakeTarget)
    assert method(found)[0] == "spark"
    assert method(found)[1].startswith(reason)


def test_spark_commits_into_a_table_that_was_moved(
    made: LakeTarget, lake: IcebergLake, tmp_path: Path
) -> None:
    """Its metadata names files in the folder where it was."""
    lake.root.rename(tmp_path / "moved")
    moved = IcebergLake(tmp_path / "moved", lake.spark).backend().target()
    assert isinstance(moved, LakeTarget)
    assert method(moved) == ("spark", f"the table says that its files are in file:{lake.folder}")
