"""Incremental appends into a Delta table without Spark: the rows at the watermark are loaded once."""

from __future__ import annotations

import datetime as dt
import math
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ematix_flow import fault_points
from ematix_flow.backends.base import Backend, LoadPlan, LoadResult
from ematix_flow.backends.lake import first_rows
from ematix_flow.backends.lake.target import LakeTarget
from ematix_flow.errors import RowRejected, TargetFailed
from ematix_flow.spec.tables import ColumnSpec, TableSpec
from ematix_flow.spec.types import DataType
from ematix_flow.spec.watermarks import SourceRange
from ematix_flow.testing.loads import PIPELINE, TARGET, load_rows, new_load, prepare
from ematix_flow.testing.matched_loads import table_of
from ematix_flow.testing.samples import every_type, every_value
from tests.lakes import lake_backend, lake_target, without_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

UTC = dt.timezone.utc
SMALL = table_of("small", {}, {"at": DataType("big_int"), "name": DataType("text")})
SLOW = "'delta.autoOptimize.optimizeWrite' = 'true'"  # a property for which Spark writes


@pytest.fixture
def backend(tmp_path: Path) -> Backend:
    return lake_backend("delta", tmp_path / "lake")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "lake" / "contract" / "small"


def row(at: Any, name: str | None) -> dict[str, Any]:
    return {"at": at, "name": name}


def poll(target: LakeTarget, rows: Sequence[dict[str, Any]], table: TableSpec = SMALL) -> LoadResult:
    """One run over a source that has these rows."""
    low = target.watermark(PIPELINE, TARGET, "at")
    read = [each for each in rows if low is None or each["at"] >= low.value]
    load = new_load(table, range=SourceRange("at", low), batch_key=None)
    return load_rows(target, load, read, parts=2, change=False)


def rows_of(folder: Path) -> list[tuple[Any, Any]]:
    from deltalake import DeltaTable

    found = DeltaTable(str(folder)).to_pyarrow_table().to_pylist()
    return sorted(((each["at"], each["name"]) for each in found), key=repr)


def files_without_commit(folder: Path) -> set[str]:
    from deltalake import DeltaTable

    named = {path.rpartition("/")[2] for path in DeltaTable(str(folder)).file_uris()}
    return {path.name for path in folder.glob("*.parquet")} - named


def versions(folder: Path) -> int:
    return len(list((folder / "_delta_log").glob("*.json")))


def test_rows_at_the_watermark_are_loaded_once(backend: Backend, folder: Path) -> None:
    target = without_spark(backend)
    source = [row(1, "a"), row(2, "b"), row(2, "b")]
    assert poll(target, source).rows.inserted == 3
    source += [row(2, "b"), row(2, None), row(3, "c")]
    assert poll(target, source).rows.inserted == 3
    assert rows_of(folder) == sorted(((each["at"], each["name"]) for each in source), key=repr)
    source += [row(3, None), row(3, None)]
    assert poll(without_spark(backend), source).rows.inserted == 2
    assert len(rows_of(folder)) == len(source)
    assert files_without_commit(folder) == set()
    assert target.sweep_staging(PIPELINE, TARGET) == []


def test_a_run_without_new_rows_commits_nothing(backend: Backend, folder: Path) -> None:
    target = without_spark(backend)
    assert poll(target, []).rows.inserted == 0
    assert not (folder / "_delta_log").exists()
    poll(target, [row(1, "a")])
    applied = poll(target, [row(1, "a")])
    assert (applied.rows.read, applied.rows.inserted) == (1, 0)
    assert versions(folder) == 1
    assert len(target.ledger(PIPELINE, TARGET)) == 1
    assert files_without_commit(folder) == set()


def test_a_row_whose_key_is_at_the_watermark_is_not_loaded_again(backend: Backend, folder: Path) -> None:
    target = without_spark(backend)
    table = table_of(
        "small", {"id": DataType("big_int")}, {"at": DataType("big_int"), "name": DataType("text")}
    )
    first = {"id": 1, **row(5, "a")}
    poll(target, [first], table)
    changed, new, later = {**first, "name": "changed"}, {"id": 2, **row(5, "b")}, {"id": 1, **row(6, "c")}
    assert poll(target, [changed, new, later], table).rows.inserted == 2
    assert rows_of(folder) == [(5, "a"), (5, "b"), (6, "c")]


MARKS: dict[str, list[Any]] = {
    "small_int": [-1, 2],
    "big_int": [-(2**63), 2**63 - 1],
    "numeric": [Decimal("-1.20"), Decimal("1.20")],
    "date": [dt.date(1, 1, 1), dt.date(9999, 12, 31)],
    "timestamp": [dt.datetime(1582, 1, 1, 0, 0, 0, 1), dt.datetime(2026, 1, 1, 0, 0, 0, 123456)],
    "timestamp_tz": [
        dt.datetime(1582, 1, 1, 0, 0, 0, 1, UTC),
        dt.datetime(2026, 1, 1, 0, 0, 0, 123456, UTC),
    ],
    "text": ["Z", "é" * 40],
}


def marked_table(kind: str) -> TableSpec:
    data_type = DataType(kind, precision=9, scale=2) if kind == "numeric" else DataType(kind)
    return table_of("small", {}, {"at": data_type, "name": DataType("text")})


@pytest.mark.parametrize("kind", MARKS)
def test_each_type_of_watermark_finds_its_rows(backend: Backend, folder: Path, kind: str) -> None:
    table, (first, second) = marked_table(kind), MARKS[kind]
    for marks in ([first], [first, second], [first, second, second]):
        poll(without_spark(backend), [row(mark, "a") for mark in marks], table)
        mark = without_spark(backend).watermark(PIPELINE, TARGET, "at")
        assert mark is not None
        assert mark.value == marks[-1]
        assert len(rows_of(folder)) == len(marks)
        assert poll(without_spark(backend), [row(mark, "a") for mark in marks], table).rows.inserted == 0


@pytest.mark.parametrize("kind", MARKS)
def test_rows_that_spark_has_written_are_found(
    backend: Backend, folder: Path, spark: SparkSession, kind: str
) -> None:
    """Spark writes times in another way, and cuts them in the statistics."""
    table, (first, second) = marked_table(kind), MARKS[kind]
    by_spark = lake_target(backend, spark)
    prepare(by_spark, table)
    spark.sql(f"ALTER TABLE delta.`{folder}` SET TBLPROPERTIES ({SLOW})")
    assert poll(by_spark, [row(first, "a"), row(second, None)], table).rows.inserted == 2
    spark.sql(f"ALTER TABLE delta.`{folder}` UNSET TBLPROPERTIES ('delta.autoOptimize.optimizeWrite')")
    assert by_spark.commit_method(LoadPlan(table, "append", range=SourceRange("at", None)))[0] == "direct"  # type: ignore[index]
    again = [row(first, "a"), row(second, None), row(second, "b")]
    assert poll(without_spark(backend), again, table).rows.inserted == 1
    assert spark.read.format("delta").load(str(folder)).count() == 3
    assert poll(by_spark, again, table).rows.inserted == 0


def test_rows_are_compared_by_all_their_values(backend: Backend) -> None:
    """As Spark compares them: a NaN and a null are equal to themselves, and zero to minus zero."""
    table = every_type()
    more = (
        ColumnSpec("at", DataType("big_int")),
        ColumnSpec("number", DataType("double"), nullable=True),
    )
    table = replace(table, columns=(*(replace(c, primary_key=False) for c in table.columns), *more))
    numbers = [math.nan, None, 0.0, math.inf]
    rows = [{**each, "at": 1, "number": numbers[n % 4]} for n, each in enumerate(every_value())]
    assert poll(without_spark(backend), rows, table).rows.inserted == len(rows)
    again = [{**each, "number": -0.0 if each["number"] == 0.0 else each["number"]} for each in rows]
    assert poll(without_spark(backend), again, table).rows.inserted == 0
    assert poll(without_spark(backend), [*again, again[0]], table).rows.inserted == 1


# ------------------------------------------------------------------ what is refused, or needs Spark


def test_a_row_without_a_watermark_is_refused(backend: Backend, folder: Path) -> None:
    target = without_spark(backend)
    poll(target, [row(1, "a")])
    table = replace(SMALL, columns=tuple(replace(each, nullable=True) for each in SMALL.columns))
    load = new_load(table, range=SourceRange("at", target.watermark(PIPELINE, TARGET, "at")), batch_key=None)
    with pytest.raises(RowRejected, match="1 of 2 rows have no watermark in column 'at'"):
        load_rows(target, load, [row(None, "b"), row(2, "c")], change=False)
    assert rows_of(folder) == [(1, "a")]
    assert files_without_commit(folder) == set()


def test_a_load_from_a_watermark_that_another_run_has_moved_is_refused(
    backend: Backend, folder: Path
) -> None:
    poll(without_spark(backend), [row(1, "a")])
    behind = new_load(SMALL, range=SourceRange("at", None), batch_key=None)
    with pytest.raises(TargetFailed, match="another run moved it"):
        load_rows(without_spark(backend), behind, [row(1, "a")], change=False)
    assert rows_of(folder) == [(1, "a")]


def test_many_rows_at_the_watermark_are_compared_by_spark(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    poll(without_spark(backend), [row(1, "a")])
    monkeypatch.setattr(first_rows, "_MOST_ROWS", 2)
    with pytest.raises(AssertionError, match="has started Spark"):
        poll(without_spark(backend), [row(1, "a"), row(1, "b"), row(1, "c")])


def test_rows_that_are_below_the_watermark_here_are_judged_by_spark(backend: Backend) -> None:
    """As with a text that the source sorts in another way."""
    target = without_spark(backend)
    poll(target, [row(5, "a")])
    load = new_load(SMALL, range=SourceRange("at", target.watermark(PIPELINE, TARGET, "at")), batch_key=None)
    with pytest.raises(AssertionError, match="has started Spark"):
        load_rows(target, load, [row(4, "b")], change=False)


# ------------------------------------------------------------------ other writers, and loads that die


def test_a_load_begins_again_when_another_writer_was_quicker(backend: Backend, folder: Path) -> None:
    from deltalake import DeltaTable, write_deltalake

    target = without_spark(backend)
    poll(target, [row(1, "a")])

    def write() -> None:
        theirs = DeltaTable(str(folder)).to_pyarrow_table().slice(0, 1)
        write_deltalake(str(folder), theirs.set_column(1, "name", [["theirs"]]), mode="append")

    with fault_points.inject("apply.before_commit", write):
        assert poll(target, [row(1, "a"), row(1, "b"), row(2, "c")]).rows.inserted == 2
    assert rows_of(folder) == [(1, "a"), (1, "b"), (1, "theirs"), (2, "c")]
    assert files_without_commit(folder) == set()


def test_a_commit_whose_answer_is_lost_counts_once(
    backend: Backend, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from deltalake import DeltaTable

    target, source = without_spark(backend), [row(1, "a"), row(1, "b"), row(2, "c")]
    poll(target, source[:1])
    commit = DeltaTable.create_write_transaction

    def lose_answer(*arguments: Any, **options: Any) -> None:
        commit(*arguments, **options)
        raise OSError("the connection was reset")

    with monkeypatch.context() as patched:
        patched.setattr(DeltaTable, "create_write_transaction", lose_answer)
        assert poll(target, source).duplicate
    assert rows_of(folder) == [(1, "a"), (1, "b"), (2, "c")]
    assert files_without_commit(folder) == set()
    assert poll(target, source).rows.inserted == 0


@pytest.mark.parametrize(
    "point",
    [
        "apply.began",
        "apply.first_rows_written",
        "apply.ledger_written",
        "apply.rows_written",
        "apply.before_commit",
        "apply.after_commit",
    ],
)
def test_a_load_that_dies_at_any_point_is_whole_or_not_there(
    backend: Backend, folder: Path, point: str
) -> None:
    poll(without_spark(backend), [row(1, "a")])
    source = [row(1, "a"), row(1, "b"), row(2, "c")]
    dying = without_spark(backend)
    low = dying.watermark(PIPELINE, TARGET, "at")
    load = new_load(SMALL, range=SourceRange("at", low), batch_key=None, run_id=uuid.uuid4())
    with pytest.raises(fault_points.InjectedCrash), fault_points.inject(point, "crash"):
        load_rows(dying, load, source, parts=2, change=False, drop=False)
    is_committed = point == "apply.after_commit"
    assert len(rows_of(folder)) == (3 if is_committed else 1)
    following = without_spark(backend)
    following.sweep_staging(PIPELINE, TARGET)
    assert files_without_commit(folder) == set()
    assert poll(following, source).rows.inserted == (0 if is_committed else 2)
    assert rows_of(folder) == [(1, "a"), (1, "b"), (2, "c")]
    assert files_without_commit(folder) == set()


def poll_here(lake: str) -> None:
    """In a process that is killed on its way."""
    poll(without_spark(lake_backend("delta", Path(lake))), [row(1, "a"), row(1, "b"), row(2, "c")])


@pytest.mark.parametrize("point", ["apply.first_rows_written", "apply.before_commit", "apply.after_commit"])
def test_a_process_that_is_killed_leaves_the_rows_whole_or_not_there(
    backend: Backend, folder: Path, point: str
) -> None:
    poll(without_spark(backend), [row(1, "a")])
    lake = str(folder.parent.parent)
    command = f"from tests.contract.test_delta_incremental import poll_here; poll_here({lake!r})"
    killed = subprocess.run(
        [sys.executable, "-c", command],
        cwd=Path(__file__).parents[2],
        env={**os.environ, fault_points.FAULT_VARIABLE: f"{point}=kill"},
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL
    assert len(rows_of(folder)) == (3 if point == "apply.after_commit" else 1)
    following = without_spark(backend)
    following.sweep_staging(PIPELINE, TARGET)
    assert files_without_commit(folder) == set()
    poll(following, [row(1, "a"), row(1, "b"), row(2, "c")])
    assert rows_of(folder) == [(1, "a"), (1, "b"), (2, "c")]
    assert files_without_commit(folder) == set()
