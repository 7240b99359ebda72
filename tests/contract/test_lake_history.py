"""Rows of a lake table that become versions, and what keeps a history from being lost."""

from __future__ import annotations

import datetime as dt
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from ematix_flow import DeltaLocalConnection, IcebergConnection
from ematix_flow.backends.base import Backend
from ematix_flow.backends.lake.target import LakeTarget
from ematix_flow.errors import FlowError, TargetFailed
from ematix_flow.spec.tables import TableSpec
from ematix_flow.spec.types import DataType
from ematix_flow.strategies.matching import Matching
from ematix_flow.testing.contract_scd2 import DATED, dated_rows
from ematix_flow.testing.evolution import TEXT, load_with_changes, table_of, value_column
from ematix_flow.testing.history import HistoryContract
from ematix_flow.testing.loads import load_rows, new_load
from ematix_flow.testing.matched_loads import load_matched
from tests.iceberg_reading import rows_of, static_table
from tests.lake_reading import read_delta
from tests.lakes import delta_first, iceberg_first, lake_backend, lake_target

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(params=["delta", "iceberg"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
    return lake_backend(request.param, tmp_path / "lake")


@pytest.fixture
def target(backend: Backend, spark: SparkSession) -> LakeTarget:
    return lake_target(backend, spark)


class Histories(HistoryContract):
    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark

    def read_rows(self, backend: Backend, table: TableSpec) -> list[dict[str, Any]]:
        if isinstance(backend.connection, DeltaLocalConnection):
            return read_delta(backend, table, self.spark)
        assert isinstance(backend.connection, IcebergConnection)
        found = static_table(Path(backend.connection.warehouse), "contract", table.name)
        return rows_of(found.scan().to_arrow(), table) if found is not None else []


@pytest.fixture
def suite(spark: SparkSession) -> Histories:
    return Histories(spark)


def test_rows_become_versions_that_begin_when_they_were_loaded(
    suite: Histories, backend: Backend, target: LakeTarget
) -> None:
    suite.test_rows_become_versions_that_begin_when_they_were_loaded(backend, target, "merge")
    table = table_of(value_column(TEXT))
    (told,) = target.plan_table(table, target.inspect(table)).differences
    assert "keeps versions" in told  # and they never become plain rows


@pytest.mark.long
def test_rows_become_versions_that_begin_at_their_events(
    suite: Histories, backend: Backend, target: LakeTarget
) -> None:
    suite.test_rows_become_versions_that_begin_at_their_events(backend, target)


@iceberg_first
def test_a_mark_of_deletion_ends_the_version_also_under_a_time_to_live(
    suite: Histories, backend: Backend, target: LakeTarget
) -> None:
    suite.test_a_mark_of_deletion_ends_the_version_also_under_a_time_to_live(backend, target)


@iceberg_first
def test_a_switch_to_versions_that_dies_before_its_last_change_keeps_the_marks_of_deletion(
    suite: Histories, backend: Backend, target: LakeTarget
) -> None:
    suite.test_a_switch_to_versions_that_dies_before_its_last_changes_keeps_the_marks_of_deletion(
        backend, target, left=(1,)
    )


@pytest.mark.long
@delta_first
def test_a_value_of_a_wider_type_is_no_new_version(
    suite: Histories, backend: Backend, target: LakeTarget
) -> None:
    if isinstance(backend.connection, DeltaLocalConnection):
        suite.test_a_whole_number_that_becomes_a_numeric_keeps_its_history(backend, target)
    else:  # Iceberg has no way from an integer to a decimal
        suite.check_a_wider_type_keeps_its_history(backend, target, DataType("big_int"), 100)


@delta_first
def test_a_switch_to_versions_that_was_broken_off_is_finished_by_the_next_run(
    suite: Histories, backend: Backend, target: LakeTarget
) -> None:
    matching = Matching(keys=("id",), compare=("value",), update=("value",))
    table = table_of(value_column(TEXT))
    load_rows(target, new_load(table, "merge", matching=matching), [{"id": 1, "value": "a"}])
    history = replace(table, keeps="versions", merge_keys=("id",))
    for change in target.plan_table(history, target.inspect(history), matching).changes:
        if change.action == "add_column":
            with target.session() as session:
                session.execute(change.sql)
    plan = target.plan_table(history, target.inspect(history), matching)
    assert plan.converts_to_scd2 and not plan.differences
    load_with_changes(target, new_load(history, "scd2", matching=matching), [{"id": 1, "value": "a"}])
    assert [version[:2] for version in suite.versions(backend, history)] == [(1, "a")]
    assert suite.fits(target, history, matching)


@pytest.mark.long
@pytest.mark.parametrize("backend", ["delta"], indirect=True)
def test_rows_of_another_program_that_know_no_time_become_versions_once(
    suite: Histories, target: LakeTarget, tmp_path: Path
) -> None:
    from deltalake import DeltaTable, write_deltalake

    folder = str(tmp_path / "lake" / "contract" / "evolving")
    matching = Matching(keys=("id",), compare=("value",), update=("value",))
    history = replace(table_of(value_column(TEXT)), keeps="versions", merge_keys=("id",))
    theirs = pa.table({"id": pa.array([1, 2]), "value": ["a", "b"]})
    write_deltalake(folder, theirs)
    twice = [{"id": 1, "value": "a"}, {"id": 1, "value": "x"}]
    with pytest.raises(FlowError):
        load_with_changes(target, new_load(history, "scd2", matching=matching), twice)
    assert not suite.fits(target, history, matching)  # nothing has been touched
    load = new_load(history, "scd2", matching=matching)
    load_with_changes(target, load, [{"id": 1, "value": "a"}, {"id": 2, "value": "c"}])
    ever = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
    names = ["id", "value", "valid_from", "valid_to", "is_current"]
    found = DeltaTable(folder).to_pyarrow_table(columns=names).to_pylist()
    assert sorted(tuple(row.values()) for row in found) == [
        (1, "a", ever, None, True),
        (2, "b", ever, load.loaded_at, False),
        (2, "c", load.loaded_at, None, True),
    ]
    assert suite.fits(target, history, matching)


@pytest.mark.parametrize("backend", ["delta"], indirect=True)
def test_a_copy_of_a_history_is_a_table_like_any_other(suite: Histories, target: LakeTarget) -> None:
    moment, flag = DataType("timestamp_tz"), DataType("boolean")
    types = {"valid_from": moment, "valid_to": moment, "is_current": flag, "row_hash": TEXT}
    copied = table_of(*[value_column(data_type, name=name) for name, data_type in types.items()])
    load_rows(target, new_load(copied), [{"id": 1, **dict.fromkeys(types)}])
    assert suite.fits(target, copied)


@pytest.mark.long
def test_a_history_whose_journal_is_gone_keeps_its_events_and_takes_no_load(
    backend: Backend, target: LakeTarget, tmp_path: Path, spark: SparkSession
) -> None:
    for batch, at in enumerate((1, 2)):  # the second confirms the first: an event without a version
        load_matched(
            target, DATED, "scd2", dated_rows((1, "a", at)), event="at", load={"batch_key": f"slot:{batch}"}
        )
    (journal,) = (tmp_path / "lake").glob(f"**/{DATED.name}/_ematix_flow")
    shutil.move(journal, tmp_path / "kept")
    with pytest.raises(TargetFailed, match="already has load 1"):
        load_matched(target, DATED, "scd2", dated_rows((1, "b", 3)), event="at", load={"batch_key": "slot:3"})
    shutil.rmtree(journal, ignore_errors=True)
    shutil.move(tmp_path / "kept", journal)
    # late, between both: had the second event been lost, this one would end the version
    load_matched(target, DATED, "scd2", dated_rows((1, "c", 1.5)), event="at", load={"batch_key": "slot:4"})
    found = Histories(spark).read_rows(backend, DATED)
    assert sorted(row["name"] for row in found) == ["a", "a", "c"]
