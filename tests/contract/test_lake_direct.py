"""Loads that commit the files of their tasks into a lake table as they are, without Spark.

Spark, the format's own library and DuckDB read back the same as from a table that Spark has written.
"""

from __future__ import annotations

import datetime as dt
import math
import pickle
import shutil
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from ematix_flow import fault_points
from ematix_flow.backends.base import Backend, LoadPlan, StagedRows
from ematix_flow.backends.lake.direct_staging import DirectStaging
from ematix_flow.backends.lake.target import LakeTarget
from ematix_flow.errors import ShrinkRefused, TargetFailed
from ematix_flow.spec.tables import ColumnSpec, TableSpec
from ematix_flow.spec.types import DataType
from ematix_flow.testing.loads import PIPELINE, TARGET, load_rows, new_load, prepare
from ematix_flow.testing.matched_loads import table_of
from ematix_flow.testing.samples import every_type, every_value
from tests.contract.direct_lakes import LAKES, SMALL, DirectLake, load, named, record_batch
from tests.lakes import without_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(params=LAKES)
def lake(request: pytest.FixtureRequest, tmp_path: Path, spark: SparkSession) -> DirectLake:
    return LAKES[request.param](tmp_path / "lake", spark)


@pytest.fixture
def backend(lake: DirectLake) -> Backend:
    return lake.backend()


@pytest.fixture
def target(lake: DirectLake) -> LakeTarget:
    return lake.by_spark()


@pytest.fixture
def made(target: LakeTarget) -> LakeTarget:
    """The target with an empty table `SMALL`."""
    prepare(target, SMALL)
    return target


def test_appends_and_refreshes_need_no_spark(made: LakeTarget, backend: Backend, lake: DirectLake) -> None:
    target = without_spark(backend)
    assert load(target, named(1, 2)).rows.inserted == 2
    assert load(target, named(3)).rows.inserted == 1
    assert lake.ids() == [1, 2, 3]
    applied = load(target, named(7), "truncate")
    assert (applied.rows.inserted, applied.rows.deleted) == (1, 3)
    assert lake.ids() == [7]
    assert len(target.ledger(PIPELINE, TARGET)) == 3
    assert target.sweep_staging(PIPELINE, TARGET) == []


def test_a_batch_that_the_table_has_is_not_loaded_again(
    made: LakeTarget, backend: Backend, lake: DirectLake
) -> None:
    target = without_spark(backend)
    load(target, named(1), batch_key="one")
    again = load(target, named(1), batch_key="one")
    assert again.duplicate
    assert lake.ids() == [1]
    assert len(lake.data_files()) == 1  # the file of the second attempt is gone


def test_a_refresh_that_would_empty_the_table_is_refused(
    made: LakeTarget, backend: Backend, lake: DirectLake
) -> None:
    target = without_spark(backend)
    load(target, named(1))
    with pytest.raises(ShrinkRefused):
        load(target, [], "truncate")
    assert load(target, [], "truncate", allow_empty=True).rows.deleted == 1
    assert lake.ids() == []
    assert load(target, []).rows.inserted == 0
    assert len(target.ledger(PIPELINE, TARGET)) == 3


@pytest.mark.parametrize("mode", ["append", "truncate"])
@pytest.mark.parametrize("rows", [[], named(1, 2)], ids=["empty", "rows"])
def test_a_first_load_creates_the_table_in_its_only_commit(
    backend: Backend, lake: DirectLake, mode: str, rows: list[dict[str, Any]]
) -> None:
    target = without_spark(backend)
    assert load(target, rows, mode).rows.inserted == len(rows)
    assert lake.ids() == [row["id"] for row in rows]
    assert len(lake.commit_files()) == 1
    assert load(target, named(3), mode).rows.inserted == 1
    assert len(target.ledger(PIPELINE, TARGET)) == 2


def test_a_new_table_has_the_columns_of_one_that_spark_creates(
    backend: Backend, target: LakeTarget, lake: DirectLake
) -> None:
    direct, by_spark = values_table("direct"), values_table("spark")
    load_rows(without_spark(backend), new_load(direct), sample_rows(), change=False)
    prepare(target, by_spark)
    assert lake.schema_of_spark("direct") == lake.schema_of_spark("spark")
    found = without_spark(backend).inspect(direct)
    assert found == target.inspect(by_spark)
    with_nothing = target.plan_table(direct, found)
    assert (with_nothing.changes, with_nothing.blockers) == ((), ())


def test_a_load_is_added_to_a_table_that_another_one_has_just_created(
    backend: Backend, lake: DirectLake
) -> None:
    other = new_load(SMALL, pipeline="another")

    def create() -> None:
        lake.create_by_another()
        lake.write_by_another(7)

    with fault_points.inject("apply.before_commit", create):
        load(without_spark(backend), named(1))
    load_rows(without_spark(backend), other, named(2), change=False)
    assert lake.ids() == [1, 2, 7]


def test_files_of_a_first_load_that_died_do_not_hide_the_place_of_the_table(
    backend: Backend, lake: DirectLake
) -> None:
    dying, made_load = without_spark(backend), new_load(SMALL)
    staging = dying.create_staging(made_load, SMALL.arrow_schema())
    staging.write("part", [record_batch(named(1))])
    assert load(without_spark(backend), named(2), pipeline="another").rows.inserted == 1
    assert len(lake.data_files()) == 2
    without_spark(backend).sweep_staging(PIPELINE, TARGET)
    assert lake.data_files() == lake.committed_files()
    assert lake.ids() == [2]


def test_a_table_that_was_deleted_but_not_its_journal_is_not_created_again(
    backend: Backend, lake: DirectLake
) -> None:
    load(without_spark(backend), named(1))
    shutil.rmtree(lake.folder / lake.commits)
    with pytest.raises(TargetFailed, match="does not exist, but its journal"):
        load(without_spark(backend), named(2))


# ------------------------------------------------------------------ the same as Spark

SAMPLES = every_type()
MORE = (
    ColumnSpec("number", DataType("double"), nullable=True),
    ColumnSpec("amount", DataType("numeric", precision=9, scale=2), nullable=True),
    ColumnSpec("long text", DataType("text"), nullable=True),
)


def sample_rows() -> list[dict[str, Any]]:
    more = [
        {"number": math.nan, "amount": Decimal("-1.23"), "long_text": "é" * 40},
        {"number": math.inf, "amount": Decimal("9999999.99"), "long_text": "\U0010ffff" * 40},
        {"number": None, "amount": None, "long_text": None},
        {"number": -0.0, "amount": Decimal("0"), "long_text": "z"},
    ]
    return [{**row, **more[number % len(more)]} for number, row in enumerate(every_value())]


def values_table(name: str) -> TableSpec:
    more = [replace(column, name=column.name.replace(" ", "_")) for column in MORE]
    return replace(SAMPLES, name=name, columns=(*SAMPLES.columns, *more))


@pytest.mark.parametrize("mode", ["append", "truncate"])
def test_rows_and_types_are_those_that_spark_writes(
    target: LakeTarget, backend: Backend, lake: DirectLake, mode: str
) -> None:
    methods = {"direct": "direct", "spark": "spark"}
    moment = dt.datetime(2026, 1, 2, 3, 4, 5, 678901, dt.timezone.utc)
    for name in methods:
        table = values_table(name)
        prepare(target, table)
        if name == "spark":
            lake.set_property(name, lake.needs_spark)
        assert target.commit_method(LoadPlan(table, mode))[0] == methods[name]  # type: ignore[index, arg-type]
        used = without_spark(backend) if name == "direct" else target
        made = new_load(table, mode, loaded_at=moment)  # type: ignore[arg-type]
        assert load_rows(used, made, sample_rows(), parts=2, change=False).rows.inserted == len(sample_rows())
    for read in (lake.read_by_spark, lake.read, lake.read_by_duckdb):
        direct, by_spark = (read(name) for name in methods)
        assert direct.schema.types == by_spark.schema.types, read.__name__
        assert direct.column_names == by_spark.column_names
        assert plain_rows(direct) == plain_rows(by_spark), read.__name__


def plain_rows(rows: pa.Table) -> list[str]:
    """Comparable rows: NaN is equal to itself, and a batch's id is another in each load."""
    return sorted(repr({**row, "_batch_id": ""}) for row in rows.to_pylist())


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("number > 1", 2),  # NaN is above every number
        ("number < 0", 0),
        ("name > 'zz'", 2),
        ("name < 'b'", 1),
        ("at >= TIMESTAMP_NTZ '2026-01-01 00:00:00.000500'", 1),
        ("amount = -1.23", 1),
        ("name IS NULL", 1),
    ],
)
def test_statistics_never_hide_a_row(
    target: LakeTarget, backend: Backend, lake: DirectLake, condition: str, expected: int
) -> None:
    """One file for each row, so that a reader may skip any of them."""
    table = table_of(
        "facts",
        {},
        {
            "number": DataType("double"),
            "name": DataType("text"),
            "at": DataType("timestamp"),
            "amount": DataType("numeric", precision=9, scale=2),
        },
    )
    prepare(target, table)
    rows = [
        {"number": math.nan, "name": "z" * 33 + "a", "at": None, "amount": Decimal("-1.23")},
        {"number": math.inf, "name": "\U0010ffff" * 40, "at": dt.datetime(1, 1, 1), "amount": None},
        {
            "number": 0.5,
            "name": "a" * 40,
            "at": dt.datetime(2026, 1, 1, microsecond=500),
            "amount": Decimal("1.00"),
        },
        {"number": None, "name": None, "at": dt.datetime(2025, 1, 1), "amount": Decimal("-100")},
    ]
    load_rows(without_spark(backend), new_load(table), rows, parts=4, change=False)
    assert lake.count_by_spark("facts", condition) == expected


@pytest.mark.parametrize(
    ("mode", "options", "reason"),
    [
        ("merge", {}, "mode merge compares the rows"),
        ("append", {"partition_by": ("name",)}, "the table is partitioned"),
    ],
)
def test_a_load_that_computes_with_the_table_needs_spark(
    made: LakeTarget, mode: Any, options: dict[str, Any], reason: str
) -> None:
    found = made.commit_method(LoadPlan(SMALL, mode, **options))
    assert found is not None
    assert found[0] == "spark"
    assert found[1].startswith(reason)


# ------------------------------------------------------------------ other writers, and loads that die


@pytest.mark.parametrize("point", ["apply.ledger_written", "apply.before_commit"])
@pytest.mark.parametrize(("mode", "held"), [("append", [1, 2, 3]), ("truncate", [3])])
def test_a_load_begins_again_when_another_writer_was_quicker(
    made: LakeTarget, backend: Backend, lake: DirectLake, point: str, mode: str, held: list[int]
) -> None:
    target = without_spark(backend)
    load(target, named(1))
    with fault_points.inject(point, lambda: lake.write_by_another(2)):
        applied = load(target, named(3), mode)
    assert (applied.rows.inserted, applied.rows.deleted) == (1, 0 if mode == "append" else 2)
    assert lake.ids() == held
    assert len(target.ledger(PIPELINE, TARGET)) == 2
    assert len(list((lake.folder / "_ematix_flow").glob("*-*-*.json"))) == 2  # no entry of the first try


@pytest.mark.parametrize("mode", ["append", "truncate", "create"])
@pytest.mark.parametrize(
    "point",
    [
        "staging.created",
        "task.staged",
        "staging.loaded",
        "apply.began",
        "apply.ledger_written",
        "apply.rows_written",
        "apply.before_commit",
        "apply.after_commit",
    ],
)
def test_a_load_that_dies_at_any_point_is_whole_or_not_there(
    backend: Backend, lake: DirectLake, point: str, mode: str
) -> None:
    creates, mode = mode == "create", mode.replace("create", "append")
    if not creates:
        load(without_spark(backend), named(1), batch_key="first")
    dying = without_spark(backend)
    made_load = new_load(SMALL, mode, batch_key="second")  # type: ignore[arg-type]
    with pytest.raises(fault_points.InjectedCrash), fault_points.inject(point, "crash"):
        staging = dying.create_staging(made_load, SMALL.arrow_schema())
        fault_points.point("staging.created")
        part = staging.write("part", [record_batch(named(2, 3))])
        fault_points.point("task.staged")
        fault_points.point("staging.loaded")
        dying.apply(made_load, StagedRows(staging, (part,)))
    after = [1, 2, 3] if mode == "append" and not creates else [2, 3]
    is_committed = point == "apply.after_commit"
    assert lake.is_there() == (is_committed or not creates)
    if lake.is_there():
        assert lake.ids() == (after if is_committed else [1])
    next_run = without_spark(backend)
    next_run.sweep_staging(PIPELINE, TARGET)
    attempt = staging.folder.rpartition("/")[2]  # type: ignore[attr-defined]
    left = {name for name in lake.data_files() if attempt in name}
    assert len(left) == int(is_committed)
    again = load(next_run, named(2, 3), mode, batch_key="second")
    assert again.duplicate == is_committed
    assert lake.ids() == after
    assert len(next_run.ledger(PIPELINE, TARGET)) == 2 - creates
    assert next_run.sweep_staging(PIPELINE, TARGET) == []


def test_a_sweep_keeps_files_that_a_later_load_has_replaced(
    made: LakeTarget, backend: Backend, lake: DirectLake
) -> None:
    """An older version of the table still needs them, although their attempt has died after its commit."""
    dying = without_spark(backend)
    made_load = new_load(SMALL)
    staging = dying.create_staging(made_load, SMALL.arrow_schema())
    part = staging.write("part", [record_batch(named(1))])
    with pytest.raises(fault_points.InjectedCrash), fault_points.inject("apply.after_commit", "crash"):
        dying.apply(made_load, StagedRows(staging, (part,)))
    other = without_spark(backend)
    other_load = new_load(SMALL, "truncate", pipeline="another")
    load_rows(other, other_load, named(2), change=False)
    assert len(other.sweep_staging(PIPELINE, TARGET)) == 1
    assert lake.rows_after(2) == 1


def test_files_of_tasks_that_failed_or_ran_twice_are_removed(
    made: LakeTarget, backend: Backend, lake: DirectLake
) -> None:
    target = without_spark(backend)
    made_load = new_load(SMALL)
    staging = target.create_staging(made_load, SMALL.arrow_schema())
    in_task = pickle.loads(pickle.dumps(staging))

    def failing() -> Any:
        yield record_batch(named(1))
        raise ValueError("the source went away")

    with pytest.raises(ValueError, match="went away"):
        in_task.write("failed", failing())
    in_task.write("lost", [record_batch(named(1))])
    part = in_task.write("told", [record_batch(named(1))])
    assert target.apply(made_load, StagedRows(staging, (part,))).rows.inserted == 1
    target.drop_staging(staging)
    assert lake.ids() == [1]
    assert lake.data_files() == lake.committed_files()


def test_a_load_whose_files_were_removed_fails_and_changes_nothing(
    made: LakeTarget, backend: Backend, lake: DirectLake
) -> None:
    target = without_spark(backend)

    def vacuum() -> None:
        for name in lake.data_files():
            (lake.folder / lake.data / name).unlink()

    with (
        fault_points.inject("apply.ledger_written", vacuum),
        pytest.raises(TargetFailed, match="is gone"),
    ):
        load(target, named(1))
    assert lake.ids() == []
    assert load(target, named(1)).rows.inserted == 1


def test_a_dry_run_of_rows_in_the_folder_changes_nothing(made: LakeTarget, lake: DirectLake) -> None:
    """A stream with several targets lets each check its staged rows first."""
    made_load = new_load(SMALL)
    staging = made.create_staging(made_load, SMALL.arrow_schema())
    assert isinstance(staging, DirectStaging)
    part = staging.write("part", [record_batch(named(1, 2))])
    rehearsal = replace(made_load, dry_run=True)
    assert made.apply(rehearsal, StagedRows(staging, (part,))).rows.inserted == 2
    assert lake.ids() == []
    assert made.apply(made_load, StagedRows(staging, (part,))).rows.inserted == 2
    assert lake.ids() == [1, 2]
