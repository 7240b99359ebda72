"""Maintenance of lake tables: fewer files, the same rows, a short history; and loads during it."""

from __future__ import annotations

import datetime as dt
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ematix_flow import fault_points
from ematix_flow.backends.base import Backend, SparkSource
from ematix_flow.backends.lake import journal
from ematix_flow.backends.lake.companion_table import UNTIL, with_lifetime_columns
from ematix_flow.backends.lake.target import LakeTarget
from ematix_flow.backends.maintenance import FileTotals, MaintenanceOptions
from ematix_flow.backends.stores.local_store import LocalStore
from ematix_flow.errors import UsageError
from ematix_flow.spec.tables import TableSpec
from ematix_flow.spec.types import DataType
from ematix_flow.testing.contract_scd2 import DATED, dated_rows, minute
from ematix_flow.testing.loads import PIPELINE, TARGET, load_rows, new_load
from ematix_flow.testing.matched_loads import load_matched, table_and_matching, table_of
from tests.lakes import delta_first, lake_backend, lake_target

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SMALL = table_of("small", {"id": DataType("big_int")}, {"name": DataType("text")})
AT_ONCE = MaintenanceOptions(retain=dt.timedelta(0), force=True)


@pytest.fixture(params=["delta", "iceberg"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
    return lake_backend(request.param, tmp_path / "lake")


@pytest.fixture
def target(backend: Backend, spark: SparkSession) -> LakeTarget:
    return lake_target(backend, spark)


def rows(backend: Backend, target: LakeTarget, table: TableSpec, *columns: str) -> list[tuple[Any, ...]]:
    source = backend.source()
    assert isinstance(source, SparkSource)
    found = source.frame(target.spark(), f"SELECT * FROM {table.label}").toArrow()
    values = [found.column(name).to_pylist() for name in columns or table.column_names]
    return list(zip(*values, strict=True))


def add(target: LakeTarget, *ids: int, **load: Any) -> None:
    load_rows(target, new_load(SMALL, **load), [{"id": i, "name": f"n{i}"} for i in ids])


def test_small_files_become_one_and_those_that_nobody_needs_go(
    backend: Backend, target: LakeTarget, tmp_path: Path
) -> None:
    assert target.maintain(SMALL, MaintenanceOptions()) == []
    for i in range(2):
        add(target, i)
    before = sorted(rows(backend, target, SMALL))
    (asked,) = target.maintain(SMALL, replace(AT_ONCE, dry_run=True))
    assert (asked.table, asked.before.files, asked.after, asked.small) == ("contract.small", 2, None, 2)
    (done,) = target.maintain(SMALL, replace(AT_ONCE, zorder=("id",)))
    assert done.before == asked.before
    assert done.after is not None and done.after.files == 1
    assert done.removed.files >= 2
    assert sorted(rows(backend, target, SMALL)) == before
    folder = tmp_path / "lake" / "contract" / "small"
    data = [p for p in folder.rglob("*.parquet") if "_delta_log" not in p.parts and p.name[0] != "."]
    assert len(data) == 1
    add(target, 9)
    assert len(rows(backend, target, SMALL)) == 3
    with pytest.raises(UsageError, match=r"'nam' is not a column of contract\.small\. Did you mean 'name'"):
        target.maintain(SMALL, MaintenanceOptions(zorder=("nam",)))


@pytest.mark.long
@pytest.mark.parametrize("backend", ["delta"], indirect=True)
def test_files_are_kept_as_asked_and_for_less_time_than_the_table_says_by_force_alone(
    target: LakeTarget, tmp_path: Path
) -> None:
    add(target, 1)
    left = tmp_path / "lake" / "contract" / "small" / "left.parquet"
    left.touch()
    then = (dt.datetime.now() - dt.timedelta(days=20)).timestamp()
    os.utime(left, (then, then))
    for days in (25, 30):  # given explicitly, because Delta must not forget its files sooner
        target.maintain(SMALL, MaintenanceOptions(retain=dt.timedelta(days=days)))
    assert left.exists()
    shorter = MaintenanceOptions(retain=dt.timedelta(days=10))
    with pytest.raises(UsageError, match=r"small keeps its files for 30 days.* 10 days only"):
        target.maintain(SMALL, shorter)
    assert left.exists()
    (done,) = target.maintain(SMALL, replace(shorter, force=True))
    assert done.removed.files == 1
    assert not left.exists()


@pytest.mark.parametrize("backend", ["delta"], indirect=True)
def test_old_files_are_removed_while_no_load_applies(
    target: LakeTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table may itself keep files for less time than a load takes."""
    add(target, 1)
    held: list[str] = []
    seen: list[list[str]] = []

    @contextmanager
    def lock(store: LocalStore, folder: str) -> Iterator[None]:
        held.append(folder)
        yield
        held.remove(folder)

    monkeypatch.setattr(LocalStore, "table_lock", lock)
    monkeypatch.setattr(
        type(target._format),
        "remove_old_files",
        lambda *_, **__: seen.append(list(held)) or FileTotals(),  # type: ignore[func-returns-value]
    )
    target.maintain(SMALL, MaintenanceOptions())
    target.maintain(SMALL, MaintenanceOptions(dry_run=True))
    assert seen == [["contract/small"], []]


@delta_first
def test_a_column_that_divides_the_files_cannot_bring_rows_together(target: LakeTarget) -> None:
    target.with_partitions(("name",))
    add(target, 1)
    with pytest.raises(UsageError, match="'name' is a partition column"):
        target.maintain(SMALL, MaintenanceOptions(zorder=("id", "name")))


@pytest.mark.long
@delta_first
def test_events_without_effect_are_removed_and_the_history_stays_exact(
    backend: Backend, target: LakeTarget
) -> None:
    def come(*events: tuple[int, str | None, float]) -> None:
        load_matched(
            target, DATED, "scd2", dated_rows(*events), event="at", load={"loaded_at": minute(1_000)}
        )

    come((1, "a", 1), (1, "a", 3))
    come((1, "a", 5))
    table, _ = table_and_matching(DATED, "scd2", event="at")
    companion = table.companion()
    assert companion is not None
    stale = sum(row[0] is not None for row in rows(backend, target, with_lifetime_columns(companion), UNTIL))
    assert stale > 0
    of_history, of_events = target.maintain(table, MaintenanceOptions())
    assert (of_history.events, of_events.events) == (0, stale)
    assert of_events.table == companion.label
    assert of_history.removed == of_events.removed == FileTotals()  # all is younger than seven days
    come((1, "b", 4))  # between what the events at 3 and at 5 confirm
    found = sorted(rows(backend, target, DATED, "at", "name"))
    assert found == [(minute(1), "a"), (minute(4), "b"), (minute(5), "a")]


@delta_first
def test_a_load_that_comes_while_a_table_is_maintained_waits_and_neither_loses_anything(
    backend: Backend, target: LakeTarget, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "KEPT_ENTRIES", 1)
    for i in range(2):
        add(target, i, batch_key=f"slot:{i}")
    other = lake_target(backend, spark)
    waiting = threading.Thread(target=lambda: add(other, 2, batch_key="slot:2"))
    with fault_points.inject("fold.counts", waiting.start) as reached:
        (done,) = target.maintain(SMALL, MaintenanceOptions())
    waiting.join(timeout=120)
    assert done.entries == 1
    assert reached.has_fired
    assert not waiting.is_alive()
    assert sorted(rows(backend, target, SMALL, "id")) == [(0,), (1,), (2,)]
    assert len(target.ledger(PIPELINE, TARGET)) == 3
    again = load_rows(target, new_load(SMALL, batch_key="slot:0"), [{"id": 9, "name": "x"}])
    assert again.duplicate
