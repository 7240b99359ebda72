"""A running stream is held and stopped between two batches, and leaves samples of what it did."""

from __future__ import annotations

import datetime as dt
import json
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from ematix_flow.api.streaming import StreamingPipeline
from ematix_flow.backends.state_stores.run_logs import open_actions, open_run_log, open_samples
from ematix_flow.spec.connections import ObjectStoreLocalConnection, SQLiteConnection
from ematix_flow.state.actions.records import Hold
from ematix_flow.state.runlog.records import RunRecord
from ematix_flow.state.samples.base import StreamSample
from tests.stream_runs import stream
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("spark")


@pytest.fixture
def clicks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StreamingPipeline:
    """Files of a folder into SQLite, watched closely."""
    monkeypatch.setattr("ematix_flow.run.run_watcher.INTERVAL_SECONDS", 0.05)
    monkeypatch.setattr("ematix_flow.streams.stream_samples.SAMPLE_SECONDS", 0.2)
    return stream(
        "clicks",
        source=ObjectStoreLocalConnection(name="lake", path=str(tmp_path / "lake"), format="jsonl"),
        source_query="raw/",
        target=SQLiteConnection(name="lite", path=str(tmp_path / "lite.db")),
        target_table="clicks",
    )


def put(tmp_path: Path, number: int) -> None:
    path = tmp_path / "lake" / "raw" / f"{number}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps({"id": number}) + "\n")
    part.rename(path)


def ids(tmp_path: Path) -> list[int]:
    try:
        with closing(sqlite3.connect(tmp_path / "lite.db")) as database:
            return [row[0] for row in database.execute("SELECT id FROM clicks ORDER BY id")]
    except sqlite3.OperationalError:  # there is no table before the first batch
        return []


def held() -> Hold | None:
    with open_actions(env=os.environ) as store:
        found = store.find_hold("run", "clicks")
    return found if found is not None and found.held_run is not None else None


def runs() -> tuple[RunRecord, ...]:
    with open_run_log(env=os.environ, reading=True) as log:
        return log.list("clicks")


def samples() -> tuple[StreamSample, ...]:
    with open_samples(env=os.environ) as store:
        return store.read("clicks", dt.datetime(2020, 1, 1, tzinfo=dt.timezone.utc))


def test_a_stream_is_held_over_a_restart_and_stopped_on_request(
    clicks: StreamingPipeline, tmp_path: Path
) -> None:
    put(tmp_path, 1)
    running = clicks.start()
    wait_until(lambda: ids(tmp_path) == [1])
    with open_actions(env=os.environ) as store:
        store.hold("run", "clicks", by="ada")
    first = wait_until(held)
    assert (first.held_run, first.held_at) == (runs()[0].run_id, "between two batches")
    put(tmp_path, 2)
    running.stop()  # as by a signal
    assert running.wait(120).total_rows == 1

    running = clicks.start()
    second = wait_until(held)
    assert second.held_run == runs()[0].run_id != first.held_run
    wait_until(_two_more_samples("held"))
    assert ids(tmp_path) == [1]
    with open_actions(env=os.environ) as store:
        store.release("run", "clicks")
    wait_until(lambda: ids(tmp_path) == [1, 2])

    with open_actions(env=os.environ) as store:
        asked, _ = store.request("stop", second.held_run or "", {}, by="grace", via="web")
    result = running.wait(120)
    assert result.shutdown_triggered
    newest, before = runs()
    assert (newest.status, before.status) == ("cancelled", "succeeded")
    assert newest.error_message == "stream 'clicks' was stopped by grace"
    with open_actions(env=os.environ) as store:
        assert store.get(asked.action_id).status == "done"

    found = samples()
    assert sum(each.values["rows_read"] for each in found) == 2
    assert sum(each.values["rows_written"] for each in found) == 2
    assert sum(each.values["batches"] for each in found) == 2
    assert {each.run_id for each in found} == {newest.run_id, before.run_id}
    assert {each.values["state"] for each in found} == {"running", "held", "stopped"}
    assert found[-1].values["state"] == "stopped" and found[-1].values["lag_unit"] in (
        "messages",
        "milliseconds",
    )
    phases = [each.values["phases"] for each in found if each.values["batches"]]
    assert all(each["read"] >= 0 and each["commit"] >= 0 for each in phases)


def _two_more_samples(state: str) -> Callable[[], bool]:
    count = len(samples())
    return lambda: [each.values["state"] for each in samples()[count:]][-2:] == [state, state]
