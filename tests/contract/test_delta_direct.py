"""What is Delta's own in loads without Spark: its log, and the tables that it lets through."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ematix_flow import fault_points
from ematix_flow.backends.base import Backend, LoadPlan
from ematix_flow.backends.delta.backend import DeltaBackend
from ematix_flow.backends.lake.target import LakeTarget
from ematix_flow.backends.stores.local_store import LocalStore
from ematix_flow.strategies.matching import Matching
from ematix_flow.testing.loads import PIPELINE, TARGET, load_rows, new_load, prepare
from tests.contract.direct_lakes import SMALL, DeltaLake, load, named
from tests.lakes import lake_backend, lake_target, without_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


LISTED: list[str] = []  # the folders that were listed


class ListingStore(LocalStore):
    def names(self, folder: str) -> list[str]:
        LISTED.append(folder)
        return super().names(folder)


@pytest.fixture
def backend(tmp_path: Path) -> Backend:
    return lake_backend("delta", tmp_path / "lake")


@pytest.fixture
def target(backend: Backend, spark: SparkSession) -> LakeTarget:
    return lake_target(backend, spark)


@pytest.fixture
def lake(tmp_path: Path, spark: SparkSession) -> DeltaLake:
    return DeltaLake(tmp_path / "lake", spark)


@pytest.fixture
def folder(lake: DeltaLake) -> Path:
    return lake.folder


@pytest.fixture
def made(target: LakeTarget) -> LakeTarget:
    """The target with an empty table `SMALL`."""
    prepare(target, SMALL)
    return target


def commit_lines(folder: Path, version: int) -> list[dict[str, Any]]:
    text = (folder / "_delta_log" / f"{version:020d}.json").read_text()
    return [json.loads(line) for line in text.splitlines()]


# ------------------------------------------------------------------ what is written


def test_a_commit_has_the_marks_by_which_loads_are_found(
    made: LakeTarget, backend: Backend, folder: Path
) -> None:
    load(without_spark(backend), named(1))
    info, add, txn = commit_lines(folder, 1)
    (entry,) = (folder / "_ematix_flow").glob("*-*-*.json")
    assert info["commitInfo"]["userMetadata"] == entry.stem.rpartition("-")[2]
    assert (txn["txn"]["appId"], txn["txn"]["version"]) == ("ematix_flow", 1)
    statistics = json.loads(add["add"]["stats"])
    assert statistics["numRecords"] == 1
    assert statistics["minValues"]["name"] == statistics["maxValues"]["name"] == "n1"
    assert statistics["nullCount"] == {"id": 0, "name": 0, "_loaded_at": 0, "_batch_id": 0}


def test_spark_goes_on_after_direct_loads_and_they_after_spark(
    made: LakeTarget, backend: Backend, lake: DeltaLake, folder: Path, spark: SparkSession
) -> None:
    """Over more commits than a checkpoint comes after."""
    direct = without_spark(backend)
    for number in range(11):
        load(direct, named(number))
    merged = new_load(SMALL, "merge", matching=Matching(keys=("id",)))
    load_rows(made, merged, named(100), change=False)  # by Spark
    for number in range(12, 24):
        load(direct, named(number))
    assert list((folder / "_delta_log").glob("*.checkpoint.parquet"))
    assert lake.ids() == [*range(11), *range(12, 24), 100]
    assert spark.read.format("delta").load(str(folder)).count() == 24
    with pytest.raises(AssertionError, match="started Spark"):
        load_rows(direct, replace(merged, run_id=new_load(SMALL).run_id), named(1), change=False)


def test_the_commit_of_an_unmarked_entry_is_found_in_the_history(
    made: LakeTarget, backend: Backend, lake: DeltaLake, folder: Path
) -> None:
    """Many commits later, when the log is not searched file by file."""
    load(without_spark(backend), named(1), batch_key="one")
    (mark,) = (folder / "_ematix_flow").glob("*.done")
    for number in range(32):
        lake.write_by_another(100 + number)
    mark.unlink()
    assert load(made, named(1), batch_key="one").duplicate


def test_loads_go_on_when_commits_before_a_checkpoint_are_removed(
    backend: Backend, lake: DeltaLake, folder: Path
) -> None:
    """As when their retention is over. A load also takes no longer after many others in the same process."""
    target = without_spark(backend)
    for number in range(12):
        load(target, named(number))
    assert (folder / "_delta_log" / f"{10:020d}.checkpoint.parquet").exists()
    for version in range(10):
        (folder / "_delta_log" / f"{version:020d}.json").unlink()
    for number in range(12, 24):
        load(target, named(number))
    assert lake.ids() == list(range(24))


def test_a_load_does_not_list_the_log_of_an_open_table(
    backend: Backend, lake: DeltaLake, folder: Path
) -> None:
    assert isinstance(backend, DeltaBackend)
    backend.store = ListingStore(str(folder.parent.parent))
    target = without_spark(backend)
    for number in range(3):
        LISTED.clear()
        load(target, named(number))
    assert LISTED
    assert not [name for name in LISTED if name.endswith("_delta_log")]
    lake.write_by_another(100)
    load(target, named(3))
    assert lake.ids() == [0, 1, 2, 3, 100]


def test_old_batches_of_a_stream_are_forgotten_without_spark(
    backend: Backend, lake: DeltaLake, folder: Path
) -> None:
    """Which means that they are kept: such a batch is found again."""
    target = without_spark(backend)
    load(target, named(1), batch_key="stream:one:1")
    target.forget_batches(PIPELINE, TARGET, dt.datetime.now(dt.timezone.utc) + dt.timedelta(days=1))
    assert load(target, named(1), batch_key="stream:one:1").duplicate


def test_a_table_of_which_only_a_checkpoint_is_left_is_not_created_again(
    made: LakeTarget, backend: Backend, folder: Path
) -> None:
    from deltalake import DeltaTable

    DeltaTable(str(folder)).create_checkpoint()
    (folder / "_delta_log" / f"{0:020d}.json").unlink()
    method = backend.target().commit_method(LoadPlan(SMALL, "append"))
    assert method == ("spark", "its log has a checkpoint and no commits")


def test_columns_that_a_load_does_not_have_are_null(
    backend: Backend, lake: DeltaLake, folder: Path, spark: SparkSession
) -> None:
    columns = "more MAP<STRING, INT>, id BIGINT, _batch_id STRING, name STRING, _loaded_at TIMESTAMP, z INT"
    spark.sql(f"CREATE TABLE delta.`{folder}` ({columns}) USING delta")
    load(without_spark(backend), named(1))
    for read in (lake.read_by_spark, lake.read):
        (row,) = read("small").to_pylist()
        assert (row["more"], row["id"], row["name"], row["z"]) == (None, 1, "n1", None)


# ------------------------------------------------------------------ tables and loads that need Spark

COLUMNS = "id BIGINT, name STRING, _loaded_at TIMESTAMP, _batch_id STRING"
TABLES = {
    "the table is partitioned by name": f"({COLUMNS}) USING delta PARTITIONED BY (name)",
    "the table has the property delta.constraints.positive = id > 0": (
        f"({COLUMNS}) USING delta TBLPROPERTIES ('delta.constraints.positive' = 'id > 0')"
    ),
    "column 'name' takes no nulls, and the load may have some": (
        f"({COLUMNS.replace('STRING,', 'STRING NOT NULL,', 1)}) USING delta"
    ),
    "the table has reader version 2": (
        f"({COLUMNS}) USING delta TBLPROPERTIES ('delta.columnMapping.mode' = 'name')"
    ),
    "the table has the reader feature deletionVectors": (
        f"({COLUMNS}) USING delta TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
    ),
    "the table has the writer feature domainMetadata, rowTracking": (
        f"({COLUMNS}) USING delta TBLPROPERTIES ('delta.enableRowTracking' = 'true')"
    ),
}


@pytest.mark.parametrize(("reason", "definition"), TABLES.items())
def test_spark_writes_into_a_table_that_asks_more_than_files(
    target: LakeTarget, spark: SparkSession, folder: Path, reason: str, definition: str
) -> None:
    spark.sql(f"CREATE TABLE delta.`{folder}` {definition}")
    assert target.commit_method(LoadPlan(SMALL, "append")) == ("spark", reason)
    assert load(target, named(1, 2)).rows.inserted == 2
    assert spark.read.format("delta").load(str(folder)).count() == 2


def test_a_refresh_of_a_table_with_a_change_data_feed_needs_spark(
    made: LakeTarget, spark: SparkSession, folder: Path
) -> None:
    spark.sql(f"ALTER TABLE delta.`{folder}` SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')")
    assert made.commit_method(LoadPlan(SMALL, "append")) is not None
    assert made.commit_method(LoadPlan(SMALL, "append"))[0] == "direct"  # type: ignore[index]
    assert made.commit_method(LoadPlan(SMALL, "truncate"))[0] == "spark"  # type: ignore[index]
    load(made, named(1))
    load(made, named(2), "truncate")
    changes = spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", 2)
    kinds = [row["_change_type"] for row in changes.load(str(folder)).select("_change_type").collect()]
    assert sorted(kinds) == ["delete", "insert", "insert"]


def test_a_table_that_changes_while_tasks_write_is_loaded_by_spark(
    made: LakeTarget, lake: DeltaLake, folder: Path, spark: SparkSession
) -> None:
    """The files are there, but the table has a constraint by now."""
    change = f"ALTER TABLE delta.`{folder}` ADD CONSTRAINT positive CHECK (id > 0)"
    with fault_points.inject("apply.began", lambda: spark.sql(change)):
        assert load(made, named(1)).rows.inserted == 1
    assert lake.ids() == [1]
    assert not lake.data_files()
    assert made.sweep_staging(PIPELINE, TARGET) == []
