"""Streams that are started again with a changed declaration or a changed folder: the result stays right, or
the start is refused before anything is loaded.

Which options may change is a table in ``tests/unit/engine/test_declared_changes.py``.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ematix_flow import Aggregation, Lookup, Target, Watermark, Window
from ematix_flow.api.streaming import StreamingPipeline
from ematix_flow.engine.streams.checkpoint import Checkpoint
from ematix_flow.engine.streams.stream_folder import stream_folder_for
from ematix_flow.errors import EngineError, FlowError, TargetFailed, Unsupported
from ematix_flow.spec.connections import ObjectStoreLocalConnection, SQLiteConnection
from tests.stream_runs import load, stream

pytestmark = pytest.mark.usefixtures("spark")


class Orders:
    """Files of orders in a folder, and the database that they are loaded into."""

    def __init__(self, folder: Path) -> None:
        self.incoming, self.file = folder / "in" / "orders", folder / "lite.db"
        self.incoming.mkdir(parents=True)
        self.files = ObjectStoreLocalConnection(name="files", path=str(folder / "in"), format="json_lines")
        self.lite = SQLiteConnection(name="lite", path=str(self.file))

    def arrive(self, *seconds: int, shop: str = "a") -> None:
        lines = [json.dumps({"at": f"2026-05-01T10:00:{at:02}Z", "shop": shop, "n": at}) for at in seconds]
        (self.incoming / f"{len(list(self.incoming.iterdir()))}.json").write_text("\n".join(lines))

    def declared(self, **options: Any) -> StreamingPipeline:
        if "targets" not in options:
            options = {"target": self.lite, "target_table": "out", **options}
        settled = {"settle_seconds": 0}
        return stream(source=self.files, source_query="orders", source_options=settled, **options)

    def load(self, **options: Any) -> None:
        load(self.declared(**options))

    def refused(self, error: type[FlowError], says: str, **options: Any) -> None:
        """Neither a plan nor a start works, and both say why."""
        followed = self.declared(**options)
        with pytest.raises(error, match=says):
            followed.plan()
        with pytest.raises(error, match=says):
            load(followed)

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.file)) as database, database:
            return database.execute(sql).fetchall()

    def checkpoint(self, label: str = "all") -> Checkpoint:
        return Checkpoint(stream_folder_for(self.declared().spec).checkpoint(label))


@pytest.fixture
def orders(tmp_path: Path) -> Orders:
    return Orders(tmp_path)


def window(**changes: Any) -> Window:
    usual: dict[str, Any] = {"kind": "tumbling", "duration_ms": 10_000, "event_time_column": "at"}
    counted = [Aggregation(agg="count", as_="orders")]
    return Window(**{**usual, "group_by": ("shop",), "aggregations": counted, **changes})


COUNTS = "SELECT substr(window_start, 18, 2), orders, revision FROM out ORDER BY 1, 3"


def test_a_window_continues_or_is_refused_and_a_refused_start_changes_nothing(orders: Orders) -> None:
    orders.arrive(1, 2, 12)
    orders.load(window=window())
    assert orders.query(COUNTS) == [("00", 2, 0), ("10", 1, 0)]
    orders.arrive(13)
    orders.refused(Unsupported, "duration_ms was 10000 and is 5000", window=window(duration_ms=5_000))
    orders.refused(Unsupported, "event_time_column was at and is n", window=window(event_time_column="n"))
    orders.refused(Unsupported, "has run with window=")
    orders.refused(Unsupported, "has run with window=", target_table="another")
    orders.refused(Unsupported, "lite:another is a new target", window=window(), target_table="another")
    typed = {"transform_sql": "SELECT at, 7 AS shop FROM source", "window": window()}
    with pytest.raises(Unsupported, match=r'group_by was .*"Text".* and is .*"Integer"'):
        orders.load(**typed)
    assert orders.query(COUNTS) == [("00", 2, 0), ("10", 1, 0)]
    reopened = window(late_data="reopen", allowed_lateness_ms=60_000)
    orders.load(window=reopened, watermark=Watermark(lateness_ms=1_000))
    assert orders.query(COUNTS) == [("00", 2, 0), ("10", 1, 0), ("10", 2, 1)]


def test_a_state_that_is_gone_or_another_stream_s_is_refused(orders: Orders, tmp_path: Path) -> None:
    orders.arrive(1)
    orders.load(window=window())
    state = orders.checkpoint().state_folder / "state.duckdb"
    kept = shutil.copy(state, tmp_path / "kept")
    state.unlink()
    orders.refused(Unsupported, "the state of stream 'events' is gone", window=window())
    orders.load(name="others", target_table="others", window=window())
    other = stream_folder_for(orders.declared(name="others").spec).checkpoint("all")
    shutil.copy(Checkpoint(other).state_folder / "state.duckdb", state)
    with pytest.raises(EngineError, match="is not the one of the stream's checkpoint"):
        orders.load(window=window())
    shutil.copy(kept, state)
    orders.arrive(2)
    orders.load(window=window())
    assert orders.query(COUNTS) == [("00", 1, 0), ("00", 2, 1)]


def test_a_table_does_not_begin_in_the_middle_unless_somebody_made_it(orders: Orders) -> None:
    orders.arrive(1)
    orders.load()
    orders.arrive(2)
    both = [Target(orders.lite, table=name) for name in ("out", "more")]
    orders.refused(Unsupported, "lite:more is a new target of stream 'events'", targets=both)
    orders.query("CREATE TABLE more (shop TEXT, n INTEGER)")
    plan = orders.declared(targets=both).plan()
    assert "lite:more is new: it gets what comes from now on" in str(plan)
    orders.load(targets=both)
    assert orders.query("SELECT n FROM out") == [(1,), (2,)]
    assert orders.query("SELECT n FROM more") == [(2,)]
    orders.file.unlink()  # with its ledger
    orders.arrive(3)
    orders.refused(TargetFailed, "out is gone, and this stream has loaded it before", targets=both)


def test_a_target_that_fails_alone_is_known_by_its_name(orders: Orders) -> None:
    def alone(*targets: Target) -> dict[str, Any]:
        return {"targets": list(targets), "continue_on_target_failure": True}

    first, second = Target(orders.lite, table="out"), Target(orders.lite, table="other")
    orders.arrive(1)
    orders.load(**alone(first, second))
    orders.arrive(2)
    renamed = SQLiteConnection(name="renamed", path=str(orders.file))
    changed = alone(Target(renamed, table="out"), second)
    orders.refused(Unsupported, "lite:out, which it has loaded, is no longer declared", **changed)
    added = alone(first, second, Target(orders.lite, table="third"))
    orders.refused(Unsupported, "lite:third is a new target", **added)
    orders.load(**alone(first, second))
    assert orders.query("SELECT count(*), count(DISTINCT n) FROM out") == [(2, 2)]


def test_a_table_is_not_matched_by_other_rules_than_it_was_loaded_by(orders: Orders) -> None:
    orders.arrive(1)
    orders.load()
    merged: dict[str, Any] = {"mode": "merge", "keys": ("shop",)}
    orders.refused(Unsupported, "mode= of lite:out was 'append' and is 'merge'", **merged)
    orders.query("CREATE UNIQUE INDEX one_of_each ON out (shop)")
    orders.arrive(2)
    orders.load(**merged)
    assert orders.query("SELECT n FROM out") == [(2,)]
    orders.refused(
        Unsupported, r"keys= of lite:out were \(shop\) and are \(n\)", **{**merged, "keys": ("n",)}
    )
    versions: dict[str, Any] = {**merged, "mode": "scd2", "event_timestamp_column": "at"}
    timed = "SELECT CAST(at AS TIMESTAMP) AS at, shop, n FROM source"
    versioned = {"name": "versions", "target_table": "versions", "transform_sql": timed}
    orders.load(**versioned, **versions)
    says = "mode= of lite:versions was 'scd2' and is 'append'"
    orders.refused(Unsupported, says, **versioned)


def test_a_lost_folder_repeats_no_file_in_any_later_run(orders: Orders) -> None:
    orders.arrive(1)
    orders.load()
    shutil.rmtree(stream_folder_for(orders.declared().spec).folder)
    for second in (2, 3):
        orders.arrive(second)
        orders.load()
    assert orders.query("SELECT n FROM out") == [(1,), (2,), (3,)]


def test_a_plan_shows_operators_state_and_position(orders: Orders) -> None:
    orders.arrive(1)
    options: dict[str, Any] = {
        "transform_sql": "SELECT s.*, c.name FROM source s LEFT JOIN cities c ON c.shop = s.shop",
        "lookups": {"cities": Lookup(orders.lite, table="cities", refresh_interval_ms=5_000)},
        "source_columns": None,
        "window": window(),
        "watermark": Watermark(lateness_ms=1_000, source_idleness_ms=60_000),
    }
    orders.query("CREATE TABLE cities (shop TEXT, name TEXT)")
    assert "position  new, no batch is loaded yet" in str(orders.declared(**options).plan())
    orders.load(**options)
    plan = orders.declared(**options).plan()
    for line in (
        "lookup    cities: cities of lite, read at the start and every 5000 ms",
        "window    tumbling 10000 ms by shop",
        "event     at, watermark 1000 ms behind; goes on with the clock after 60000 ms without rows",
        "late rows drop",
        "state     next to the checkpoint",
        f"position  continues after batch 0 of {orders.checkpoint().folder}",
        "the state has 1 row and ",
        "watermark 2026-05-01T10:00:00+00:00",
        "exactly_once",
    ):
        assert line in str(plan)
    progress = plan.to_json()["progress"][0]
    assert (progress["last_batch"], progress["state_rows"], progress["new_targets"]) == (0, 1, [])
