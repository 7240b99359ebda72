"""How a load of a lake table commits next to other writers, and what a dead load leaves."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ematix_flow import fault_points
from ematix_flow.backends.base import Backend
from ematix_flow.backends.lake.journal import LakeCommit
from ematix_flow.backends.lake.target import LakeTarget
from ematix_flow.errors import PlanError, SchemaMismatch, TargetFailed
from ematix_flow.spec.tables import ColumnSpec, TableSpec
from ematix_flow.spec.types import DataType
from ematix_flow.spec.watermarks import SourceRange
from ematix_flow.testing.contract_scd2 import DATED, dated_rows, minute
from ematix_flow.testing.evolution import EvolutionContract
from ematix_flow.testing.loads import PIPELINE, TARGET, load_rows, new_load, prepare
from ematix_flow.testing.matched_loads import load_matched, table_of
from ematix_flow.testing.samples import every_type, every_value
from tests.lake_reading import read_delta
from tests.lakes import lake_backend, lake_target

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SMALL = table_of("small", {"id": DataType("big_int")}, {"name": DataType("text")})


@pytest.fixture
def backend(tmp_path: Path) -> Backend:
    return lake_backend("delta", tmp_path / "lake")


@pytest.fixture
def target(backend: Backend, spark: SparkSession) -> LakeTarget:
    return lake_target(backend, spark)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "lake" / "contract" / "small"


def named(*rows: tuple[int, str]) -> list[dict[str, Any]]:
    return [{"id": i, "name": name} for i, name in rows]


def written_by_another(folder: Path, key: int, name: str) -> None:
    """A row that delta-rs adds: it takes no lock of ours."""
    from deltalake import DeltaTable, write_deltalake

    schema = pa.schema(DeltaTable(str(folder)).schema().to_arrow())
    loaded = pa.scalar(minute(0), schema.field("_loaded_at").type)
    values = {"id": key, "name": name, "_loaded_at": loaded, "_batch_id": "by hand"}
    arrays = [pa.array([values[f.name]], type=f.type) for f in schema]
    write_deltalake(str(folder), pa.Table.from_arrays(arrays, schema=schema), mode="append")


def names_in(backend: Backend, spark: SparkSession) -> dict[int, str]:
    return {row["id"]: row["name"] for row in read_delta(backend, SMALL, spark)}


@pytest.mark.parametrize(
    ("point", "counted"), [("apply.ledger_written", (0, 2)), ("apply.before_commit", (1, 1))]
)
def test_a_row_that_another_writer_adds_meanwhile_is_matched_not_doubled(
    backend: Backend,
    target: LakeTarget,
    spark: SparkSession,
    folder: Path,
    point: str,
    counted: tuple[int, int],
) -> None:
    load_matched(target, SMALL, "merge", named((1, "a"), (2, "b")))
    with fault_points.inject(point, lambda: written_by_another(folder, 3, "theirs")):
        applied = load_matched(target, SMALL, "merge", named((2, "B"), (3, "ours")))
    assert (applied.rows.inserted, applied.rows.updated) == counted  # too late to be counted again
    assert names_in(backend, spark) == {1: "a", 2: "B", 3: "ours"}
    assert len(read_delta(backend, SMALL, spark)) == 3
    assert len(target.ledger(PIPELINE, TARGET)) == 2


def test_a_new_row_that_another_writer_was_quicker_with_gets_our_values(
    backend: Backend, target: LakeTarget, spark: SparkSession, folder: Path
) -> None:
    load_matched(target, SMALL, "merge", named((1, "a")))
    with fault_points.inject("apply.before_commit", lambda: written_by_another(folder, 3, "theirs")):
        load_matched(target, SMALL, "merge", named((3, "ours")))
    assert sorted(row["name"] for row in read_delta(backend, SMALL, spark)) == ["a", "ours"]


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_a_table_that_its_first_load_makes_is_as_one_that_is_made_ahead(
    tmp_path: Path, spark: SparkSession, kind: str
) -> None:
    """Columns of every type and of names that need quotes, which of them take nulls, and its partitions."""
    target = lake_target(lake_backend(kind, tmp_path / "lake"), spark)
    named = (ColumnSpec("a `place`, or so", DataType("text")), ColumnSpec("x=1;y", DataType("integer")))
    columns = tuple(replace(c, nullable=c.name == "a_text") for c in every_type().columns)
    ahead = replace(every_type(), name="ahead", columns=(*columns, *named))
    made = replace(ahead, name="made")
    divided = ("x=1;y",)
    prepare(target.with_partitions(divided), ahead)
    rows = [{**row, "a `place`, or so": "é", "x=1;y": 7} for row in every_value()]
    filled = [row for row in rows if all(c.nullable or row[c.name] is not None for c in made.columns)]
    load = new_load(made, partition_by=divided, table_plan=target.plan_table(made, None))
    assert load_rows(target, load, filled, change=False).rows.inserted == len(filled) > 0
    found = {}
    for table in (ahead, made):
        snapshot = target._format.snapshot(target.spark(), table)
        assert snapshot is not None
        found[table.name] = snapshot.schema, target._format.partition_columns(target.spark(), table)
    assert found["made"] == found["ahead"]


def test_a_table_within_another_or_with_columns_that_differ_in_case_is_refused(target: LakeTarget) -> None:
    load_rows(target, new_load(SMALL), named((1, "a")))
    with pytest.raises(PlanError, match="one inside the other"):
        load_rows(target, new_load(replace(SMALL, schema="contract/small", name="inner")), named((1, "a")))
    shouted = table_of("small", {"ID": DataType("big_int")}, {"name": DataType("text")})
    with pytest.raises(SchemaMismatch, match="declared as 'ID'"):
        target.inspect(shouted)


@pytest.mark.long
def test_a_history_that_was_deleted_by_hand_begins_again_without_its_old_events(
    backend: Backend, target: LakeTarget, spark: SparkSession, folder: Path
) -> None:
    def add(*rows: tuple[int, str | None, float]) -> None:
        load_matched(target, DATED, "scd2", dated_rows(*rows), event="at", load={"loaded_at": minute(1_000)})

    add((1, "a", 1), (1, "a", 5))
    shutil.rmtree(folder.with_name(DATED.name))
    add((1, "b", 3))
    add((1, "a", 2))  # the event at 5 is of the table that is gone
    stored = read_delta(backend, DATED, spark)
    assert sorted((row["at"], row["name"]) for row in stored) == [(minute(2), "a"), (minute(3), "b")]


def test_a_load_that_died_before_its_commit_left_nothing_and_the_next_counts_on(
    backend: Backend, target: LakeTarget, spark: SparkSession, folder: Path
) -> None:
    load_matched(target, SMALL, "merge", named((1, "a")))
    for point in ("apply.ledger_written", "apply.before_commit"):
        with fault_points.inject(point, "crash"), pytest.raises(fault_points.InjectedCrash):
            load_matched(target, SMALL, "merge", named((1, point)))
        assert names_in(backend, spark) == {1: "a"}
        assert len(target.ledger(PIPELINE, TARGET)) == 1
    load_matched(target, SMALL, "merge", named((1, "z")))
    assert names_in(backend, spark) == {1: "z"}
    journal = sorted(p.name for p in (folder / "_ematix_flow").iterdir())
    assert [name[:12] for name in journal] == ["000000000001"] * 2 + ["000000000002"] * 2


def test_a_load_that_died_after_its_commit_is_found_and_not_done_again(
    backend: Backend, target: LakeTarget, spark: SparkSession
) -> None:
    load = new_load(SMALL, batch_key="slot:1")
    with fault_points.inject("apply.after_commit", "crash"), pytest.raises(fault_points.InjectedCrash):
        load_rows(target, load, named((1, "a")))
    assert len(target.ledger(PIPELINE, TARGET)) == 1
    assert load_rows(target, new_load(SMALL, batch_key="slot:1"), named((1, "a"))).duplicate
    assert len(read_delta(backend, SMALL, spark)) == 1


def test_a_load_that_commits_after_its_process_was_killed_is_found_and_not_done_again(
    backend: Backend, target: LakeTarget, spark: SparkSession, folder: Path
) -> None:
    """A Java process may outlive the run that was killed: here it commits when the next run is under way."""
    load_rows(target, new_load(SMALL), named((1, "a")))
    batch = new_load(SMALL)
    with pytest.raises(fault_points.InjectedCrash), fault_points.inject("apply.before_commit", "crash"):
        load_rows(target, batch, named((2, "b")))
    (left,) = (folder / "_ematix_flow").glob("000000000002-*.json")
    rows = stamped_row(target, 2, "b")
    late = LakeCommit(2, left.stem.rpartition("-")[2])
    stored = SMALL.with_load_columns()
    with fault_points.inject(
        "apply.ledger_written", lambda: target._format.append(spark, stored, rows, late)
    ):
        assert load_rows(target, batch, named((2, "b"))).duplicate
    assert names_in(backend, spark) == {1: "a", 2: "b"}
    assert len(read_delta(backend, SMALL, spark)) == 2
    assert len(target.ledger(PIPELINE, TARGET)) == 2


def stamped_row(target: LakeTarget, key: int, name: str) -> DataFrame:
    snapshot = target._format.snapshot(target.spark(), SMALL)
    assert snapshot is not None
    return target.spark().createDataFrame(
        [(key, name, minute(0), "of a run that was killed")], snapshot.schema
    )


def test_events_that_a_dead_load_wrote_next_to_the_history_never_count(
    backend: Backend, target: LakeTarget, spark: SparkSession
) -> None:
    def add(*rows: tuple[int, str | None, float]) -> None:
        load_matched(target, DATED, "scd2", dated_rows(*rows), event="at", load={"loaded_at": minute(1_000)})

    add((1, "a", 1), (1, "a", 3))
    with fault_points.inject("apply.rows_written", "crash"), pytest.raises(fault_points.InjectedCrash):
        add((1, "a", 2), (1, "a", 9), (1, "b", 12))
    add((1, "c", 5))
    stored = read_delta(backend, DATED, spark)
    assert sorted((row["name"], row["at"]) for row in stored) == [("a", minute(1)), ("c", minute(5))]
    add((1, "b", 0))  # the companion table must still have only 3: no version at 9
    stored = read_delta(backend, DATED, spark)
    assert sorted((row["at"], row["name"]) for row in stored) == [
        (minute(0), "b"),
        (minute(1), "a"),
        (minute(5), "c"),
    ]


def test_a_table_whose_journal_is_gone_takes_no_load(
    backend: Backend, target: LakeTarget, spark: SparkSession, folder: Path
) -> None:
    load_rows(target, new_load(SMALL), named((1, "a")))
    for path in (folder / "_ematix_flow").iterdir():
        path.unlink()
    with pytest.raises(TargetFailed, match=r"its journal .* has no entry of it"):
        load_rows(target, new_load(SMALL), named((2, "b")))
    assert names_in(backend, spark) == {1: "a"}


@pytest.mark.long
def test_a_batch_that_changes_nothing_is_in_the_ledger_and_makes_no_version_of_the_table(
    backend: Backend, target: LakeTarget, folder: Path
) -> None:
    load_matched(target, SMALL, "merge", named((1, "a")))
    versions = sorted(p.name for p in (folder / "_delta_log").glob("*.json"))
    applied = load_matched(target, SMALL, "merge", named((1, "a")), load={"batch_key": "slot:2"})
    assert applied.rows.unchanged == 1
    assert sorted(p.name for p in (folder / "_delta_log").glob("*.json")) == versions
    assert target.ledger(PIPELINE, TARGET)[0].batch_key == "slot:2"
    assert load_matched(target, SMALL, "merge", named((1, "a")), load={"batch_key": "slot:2"}).duplicate


class Evolving(EvolutionContract):
    """What Spark reads: delta-rs does not support widened columns."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark

    def read_rows(self, backend: Backend, table: TableSpec) -> list[dict[str, Any]]:
        return read_delta(backend, table, self.spark)


@pytest.mark.long
def test_columns_are_widened_and_keep_their_values(
    backend: Backend, target: LakeTarget, spark: SparkSession
) -> None:
    Evolving(spark).test_types_are_widened_and_keep_their_values(backend, target)


@pytest.mark.long
def test_a_history_gets_a_column_whose_name_the_files_cannot_have(
    backend: Backend, target: LakeTarget, spark: SparkSession
) -> None:
    later = ColumnSpec("added later", DataType("text"), nullable=True)
    wider = replace(DATED, columns=(*DATED.columns, later))
    load_matched(target, DATED, "scd2", dated_rows((1, "a", 1)), event="at")
    for batch, name in (("2", "b"), ("3", "c")):
        rows = [{**row, later.name: f"={name}"} for row in dated_rows((1, name, int(batch)))]
        load_matched(target, wider, "scd2", rows, event="at", load={"batch_key": batch})
    found = {row["name"]: row[later.name] for row in read_delta(backend, wider, spark)}
    assert found == {"a": None, "b": "=b", "c": "=c"}


def test_a_table_that_is_moved_with_its_journal_goes_on_from_its_watermark(
    target: LakeTarget, tmp_path: Path, spark: SparkSession
) -> None:
    label = f"lake:{DATED.label}"
    reading = new_load(DATED, "append", range=SourceRange("at", None), batch_key=None)
    load_rows(target, replace(reading, target=label), dated_rows((1, "a", 1)))
    moved = lake_target(lake_backend("delta", tmp_path / "moved"), spark)
    place = f"{DATED.schema}/{DATED.name}"
    shutil.copytree(tmp_path / "lake" / place, tmp_path / "moved" / place)
    mark = moved.watermark(PIPELINE, label, "at")
    assert mark is not None
    assert mark == target.watermark(PIPELINE, label, "at")


def test_columns_that_differ_in_case_alone_are_refused_before_anything_is_read(target: LakeTarget) -> None:
    twice = table_of("twice", {"id": DataType("big_int")}, {"ID": DataType("text")})
    with pytest.raises(SchemaMismatch, match="differ only in case"):
        target.inspect(twice)


def test_times_are_stored_as_every_reader_of_parquet_knows_them(target: LakeTarget, folder: Path) -> None:
    load_rows(target, new_load(SMALL), named((1, "a")))
    stored = pq.ParquetFile(next(folder.glob("*.parquet"))).schema
    assert stored.column(stored.names.index("_loaded_at")).physical_type == "INT64"
