"""One contract over every store of stream samples."""

from __future__ import annotations

import datetime as dt
import json
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ematix_flow.backends.state_stores.run_logs import open_run_log, open_samples
from ematix_flow.state.runlog.records import RunRecord
from ematix_flow.state.samples.base import MOST_SAMPLES, SampleStore, StreamSample
from tests.contract.chosen import shared_out

NOON = dt.datetime(2026, 5, 17, 12, tzinfo=dt.timezone.utc)


@pytest.fixture(params=["sqlite", "memory", "postgres", *shared_out("duckdb", "mariadb")])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    kind = request.param
    if kind == "memory":
        return f"memory://{tmp_path.name}"
    if kind in ("sqlite", "duckdb"):
        return f"{kind}://{tmp_path / 'log.db'}"
    return str(request.getfixturevalue({"postgres": "pg_database"}.get(kind, f"{kind}_database")))


@pytest.fixture
def store(url: str) -> Any:
    with open_samples(url, env={}, keep_open=True) as opened:
        yield opened


def sample(seconds: float = 0, stream: str = "clicks", run_id: str = "r1", **values: Any) -> StreamSample:
    found = {"rows_read": 10, "batches": 1, "phases": {"read": 0.5}, "state": "running", **values}
    return StreamSample(stream, run_id, NOON + dt.timedelta(seconds=seconds), found)


def test_samples_are_read_oldest_first_from_a_time_on(store: SampleStore) -> None:
    for seconds in (20, 0, 10):
        store.add(sample(seconds, lag={"0": int(seconds)}))
    store.add(sample(5, stream="Clicks"))
    found = store.read("clicks", NOON + dt.timedelta(seconds=10))
    assert found == (sample(10, lag={"0": 10}), sample(20, lag={"0": 20}))
    assert found[0].to_json()["at"] == "2026-05-17T12:00:10+00:00"


def test_the_same_sample_twice_is_one(store: SampleStore) -> None:
    for rows in (1, 2):
        store.add(sample(rows_read=rows))
    assert [each.values["rows_read"] for each in store.read("clicks", NOON)] == [1]


def test_many_samples_are_merged_into_few(store: SampleStore) -> None:
    for seconds in range(7):
        store.add(sample(seconds, rows_written=1, watermark=str(seconds)))
    found = store.read("clicks", NOON, limit=3)
    assert [each.values["rows_read"] for each in found] == [30, 30, 10]
    assert [each.values["watermark"] for each in found] == ["2", "5", "6"]
    assert found[0].values["phases"] == {"read": 1.5}
    assert (found[0].at, found[0].values["batches"], found[0].values["state"]) == (
        NOON + dt.timedelta(seconds=2),
        3,
        "running",
    )


def test_samples_without_some_values_are_merged_too(store: SampleStore) -> None:
    for seconds, phases in enumerate(({"dead letters": 0.25}, {"read": 1}, {"transform": 0.5}, {})):
        store.add(sample(seconds, rows_read=None, dead_letters=2_500_000_000, phases=phases))
    store.add(sample(4, rows_read=1, phases={"transform": 0.25}))
    (found,) = store.read("clicks", NOON, limit=1)
    assert found.values["phases"] == {"read": 1.0, "dead letters": 0.25, "transform": 0.75}
    store.add(sample(5, rows_read=1, watermark="a\0b 😀"))
    (with_odd_text,) = store.read("clicks", NOON, limit=1)
    assert with_odd_text.values["watermark"] == "a\0b 😀"
    counts = [found.values[name] for name in ("rows_read", "rows_written", "batches", "dead_letters")]
    assert counts == [1, 0, 5, 10_000_000_000] and all(type(count) is int for count in counts)


def test_a_week_of_samples_costs_as_many_rows_as_its_chart_has_points(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, week = tmp_path / "log.db", 60_480
    with open_samples(f"sqlite://{path}", env={}) as store:
        store.add(sample(0))
        with sqlite3.connect(path) as database:
            statement = (
                "INSERT INTO flow_stream_samples (stream, run_id, at, sample) "
                "SELECT stream, CAST(number AS TEXT), at, sample FROM flow_stream_samples, "
                "(WITH RECURSIVE n(number) AS (SELECT 1 UNION ALL SELECT number + 1 FROM n WHERE number < ?) "
                "SELECT number FROM n)"
            )
            database.execute(statement, (week - 1,))
        database.close()
        read: list[str] = []
        loads = json.loads
        monkeypatch.setattr(json, "loads", lambda text: read.append(text) or loads(text))
        found = store.read("clicks", NOON)
    assert len(found) <= MOST_SAMPLES and len(read) <= MOST_SAMPLES + 1
    assert sum(each.values["rows_read"] for each in found) == 10 * week


def test_the_newest_sample_of_each_stream_is_found(store: SampleStore) -> None:
    for seconds in (0, 10):
        store.add(sample(seconds))
    store.add(sample(3, stream="orders", run_id="r2"))
    assert store.newest(["orders", "clicks", "nothing"]) == {
        "clicks": sample(10),
        "orders": sample(3, stream="orders", run_id="r2"),
    }


def test_old_samples_are_deleted(store: SampleStore) -> None:
    for stream in ("clicks", "orders"):
        for seconds in (0, 60):
            store.add(sample(seconds, stream=stream))
    before = NOON + dt.timedelta(seconds=60)
    assert store.purge(before, "clicks") == 1
    assert store.purge(before) == 1
    assert [len(store.read(stream, NOON)) for stream in ("clicks", "orders")] == [1, 1]


def test_samples_hold_no_secret(store: SampleStore) -> None:
    store.add(sample(lag={"postgres://u:hunter2@h/d": 1}))
    assert "hunter2" not in str(store.read("clicks", NOON)[0].to_json())


def test_streams_write_at_the_same_time(store: SampleStore) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda n: store.add(sample(n, run_id=f"r{n}")), range(40)))
    assert len(store.read("clicks", NOON)) == 40


def test_samples_are_next_to_the_runs(url: str) -> None:
    with open_run_log(url, env={}) as log, open_samples(url, env={}) as store:
        log.start(RunRecord("r1", "clicks", "t", "stream"))
        store.add(sample())
    with open_samples(url, env={}, read_only=True) as store:
        assert store.read("clicks", NOON) == (sample(),)
    with open_run_log(url, env={}, reading=True) as log:
        assert log.get("r1").pipeline == "clicks"


def test_reading_creates_nothing(tmp_path: Path) -> None:
    with open_samples(f"sqlite://{tmp_path}/none.db", env={}, read_only=True) as store:
        assert store.read("clicks", NOON) == () and store.newest(["clicks"]) == {}
    assert not (tmp_path / "none.db").exists()


def test_a_run_log_in_a_bucket_has_no_samples() -> None:
    store = open_samples("s3://key:hunter2@bucket/prefix", env={})
    store.add(sample())
    assert store.read("clicks", NOON) == () and "hunter2" not in store.location
