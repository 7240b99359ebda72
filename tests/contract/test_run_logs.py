"""One contract over every store of a run log and its slots."""

from __future__ import annotations

import datetime as dt
import logging
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sqlalchemy as sa

from ematix_flow.backends.state_stores.run_logs import open_run_log, open_slots, sql_tables
from ematix_flow.backends.stores.object_urls import open_object_store
from ematix_flow.errors import ConfigError, FlowError, LoadError, UsageError
from ematix_flow.spec.location import SourceLocation
from ematix_flow.spec.row_counts import RowCounts
from ematix_flow.state.runlog.base import RunLog
from ematix_flow.state.runlog.objects import ObjectRunLog
from ematix_flow.state.runlog.records import LONGEST_OUTPUT, RunRecord
from ematix_flow.state.slots.base import Slot
from tests.contract.chosen import shared_out
from tests.contract.object_stores import OBJECTS, object_url
from tests.services.gcs import GcsServer
from tests.services.s3 import S3Server
from tests.services.shared import private_server

gcs = private_server("gcs")  # tests here stop it

NOON = dt.datetime(2026, 5, 17, 12, 0, 0, 123456, tzinfo=dt.timezone.utc)
KINDS = [
    *("memory", "sqlite", "postgres", "s3"),
    *shared_out("duckdb", "mariadb", "mysql"),
    *shared_out("gcs", "azure"),
]


@pytest.fixture(params=KINDS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    kind = request.param
    if kind == "memory":
        return f"memory://{uuid.uuid4().hex}"
    if kind in ("sqlite", "duckdb"):
        return f"{kind}://{tmp_path}/run_log.db"
    if kind in OBJECTS:
        return object_url(request, kind)
    found: str = request.getfixturevalue({"postgres": "pg_database"}.get(kind, f"{kind}_database"))
    return found


@pytest.fixture
def log(url: str) -> Iterator[RunLog]:
    with open_run_log(url, env={}, reading=True) as opened:
        yield opened


def record(pipeline: str = "orders", **fields: object) -> RunRecord:
    values: dict[str, object] = {"started_at": NOON, "target": "t", "mode": "append", **fields}
    return RunRecord(run_id=uuid.uuid4().hex, pipeline=pipeline, **values)  # type: ignore[arg-type]


def test_a_run_is_read_as_it_was_written(log: RunLog, url: str) -> None:
    one = record(
        slot=NOON, trigger="schedule", attempt=2, batch="slot:x", overdue=("a", "b"), code_version="1"
    )
    log.start(one)
    assert log.get(one.run_id) == one
    done = log.finish(
        one.run_id,
        "succeeded",
        path="copy",
        rows=RowCounts(read=2**40, inserted=3),
        source_to="ü",
        engine="local[2], Spark 4.1.3",
        metrics={"stages": {"read": 1.5}},
        finished_at=NOON + dt.timedelta(seconds=1.5),
    )
    assert done
    with open_run_log(url, env={}, reading=True) as again:
        found = again.get(one.run_id[:8])
    assert (found.status, found.rows.read, found.source_to) == ("succeeded", 2**40, "ü")
    assert found.metrics == {"stages": {"read": 1.5}} and found.duration == dt.timedelta(seconds=1.5)
    assert (found.slot, found.attempt, found.overdue) == (NOON, 2, ("a", "b"))
    assert (found.engine, found.code_version) == ("local[2], Spark 4.1.3", "1")


def test_an_error_is_kept_with_the_line_of_the_declaration(log: RunLog) -> None:
    told, plain = record(), record()
    for one in (told, plain):
        log.start(one)
    log.finish(told.run_id, "failed", error=LoadError("no", where=SourceLocation("pipelines.py", 7)))
    log.finish(plain.run_id, "failed", error=ValueError("no"), where=SourceLocation("pipelines.py", 9))
    assert log.get(told.run_id).error_where == "pipelines.py:7"
    assert (log.get(plain.run_id).error_type, log.get(plain.run_id).error_where) == (
        "ValueError",
        "pipelines.py:9",
    )


def test_the_newest_come_first_and_may_be_chosen(log: RunLog) -> None:
    runs = [record(started_at=NOON + dt.timedelta(minutes=n)) for n in range(5)]
    for one in [*runs, record("others")]:
        log.start(one)
    log.finish(runs[4].run_id, "failed", error=ValueError("no"))
    assert [found.run_id for found in log.list("orders", limit=3)] == [r.run_id for r in runs[4:1:-1]]
    assert [found.run_id for found in log.list(status="failed")] == [runs[4].run_id]
    assert len(log.list(since=NOON + dt.timedelta(minutes=3))) == 2
    assert len(log.running("orders")) == 4


def test_runs_that_go_on_and_runs_that_ended_are_listed_in_one_order(log: RunLog) -> None:
    runs = [record("abcd"[n % 4], started_at=NOON + dt.timedelta(minutes=n)) for n in range(12)]
    for n, one in enumerate(runs):
        log.start(one)
        if n % 3:
            log.finish(one.run_id, "succeeded" if n % 2 else "failed", error=None if n % 2 else ValueError())
    assert [found.run_id for found in log.list(limit=100)] == [one.run_id for one in reversed(runs)]
    newest = [one.run_id for one in reversed(runs)]
    assert [found.run_id for found in log.list(status="running", limit=2)] == [newest[2], newest[5]]
    assert [found.run_id for found in log.list("b", "succeeded")] == [newest[6], newest[10]]
    assert [found.run_id for found in log.list(status="failed", since=runs[3].started_at)] == [
        newest[1],
        newest[3],
        newest[7],
    ]


def test_the_newest_run_of_many_pipelines_is_asked_for_at_once(log: RunLog) -> None:
    for minute in range(3):
        for name in ("a", "b", "Ü/ö", "c'"):
            log.start(record(name, started_at=NOON + dt.timedelta(minutes=minute)))
    for one in log.list("b", limit=2):
        log.finish(one.run_id, "failed", error=ValueError("no"))
    found = log.newest(["b", "Ü/ö", "nobody", "b", *(f"n{n}" for n in range(220))])
    assert {name: [(run.started_at.minute, run.status) for run in runs] for name, runs in found.items()} == {
        "b": [(2, "failed")],
        "Ü/ö": [(2, "running")],
    }
    assert log.newest([]) == {}


def test_the_newest_runs_of_each_are_those_since_its_last_success(log: RunLog) -> None:
    def ended(name: str, *statuses: str) -> None:
        for minute, status in enumerate(statuses):
            one = record(name, started_at=NOON + dt.timedelta(minutes=minute))
            log.start(one)
            if status != "running":
                log.finish(one.run_id, status)  # type: ignore[arg-type]

    ended("good", "failed", "succeeded")
    ended("bad", "failed", "succeeded", "failed", "cancelled", "interrupted", "running")
    ended("new", "failed", "skipped")
    found = log.newest(["good", "bad", "new", "nobody"], each=4)
    assert {name: [run.status for run in runs] for name, runs in found.items()} == {
        "good": ["succeeded"],
        "bad": ["running", "interrupted", "cancelled", "failed"],
        "new": ["skipped", "failed"],
    }


def test_the_output_of_a_run_is_stored_separately(log: RunLog) -> None:
    one = record()
    log.start(one)
    assert log.output(one.run_id) is None
    log.save_output(one.run_id, "first\n")
    log.save_output(one.run_id, "first\nsecond with password=hunter2 ü\n")
    assert log.output(one.run_id) == "first\nsecond with password=*** ü\n"
    log.save_output(one.run_id, "x" * 1_000_000 + "the end")
    kept = log.output(one.run_id)
    assert kept is not None and len(kept) == LONGEST_OUTPUT and kept.endswith("xthe end")


def test_what_is_old_is_forgotten_and_what_is_needed_stays(log: RunLog) -> None:
    hours = [NOON + dt.timedelta(hours=n) for n in range(10)]
    runs = [record(started_at=moment, batch="run:0" if n == 1 else None) for n, moment in enumerate(hours)]
    for n, one in enumerate(runs):
        log.start(one)
        log.save_output(one.run_id, "said")
        if n != 3:
            log.finish(one.run_id, "succeeded" if n == 2 else "failed", error=None)
    other = record("others")
    log.start(other)
    log.finish(other.run_id, "failed")
    # 1 has the newest batch, 2 the newest success, 3 has not ended
    assert log.purge(hours[8], keep=3, most=1) == 1
    assert log.purge(hours[8], keep=3) == 3
    ids = {found.run_id for found in log.list("orders", limit=99)}
    assert ids == {runs[n].run_id for n in (1, 2, 3, 7, 8, 9)}
    assert log.get(other.run_id).status == "failed" and log.output(runs[5].run_id) is None
    with pytest.raises(UsageError):
        log.get(runs[5].run_id)
    assert log.purge(hours[9], pipeline="orders") == 2
    assert {found.run_id for found in log.list("orders")} == {runs[n].run_id for n in (1, 2, 3, 9)}
    batch, newest = log.last_batch("orders"), log.last("orders")
    assert batch is not None and batch.run_id == runs[1].run_id
    assert newest is not None and newest.run_id == runs[9].run_id


def test_a_run_ends_once(log: RunLog) -> None:
    one = record()
    log.start(one)
    assert log.settle(one.run_id, "interrupted", "it died")
    assert not log.settle(one.run_id, "interrupted", "it died")
    assert log.finish(one.run_id, "succeeded")  # it lives after all
    assert not log.finish(one.run_id, "failed")
    assert log.get(one.run_id).status == "succeeded"


def test_one_that_only_looks_makes_nothing_and_finds_it_empty(url: str, tmp_path: Path) -> None:
    before = sorted(tmp_path.iterdir())
    with open_run_log(url, env={}, reading=True, read_only=True) as log:
        assert log.list() == () and log.newest(["orders"]) == {} and log.location
    with open_slots(url, env={}, read_only=True) as slots:
        assert slots.unfinished() == [] and slots.newest(["orders"]) == {} and slots.now()
    assert sorted(tmp_path.iterdir()) == before
    if not url.startswith(("memory", "sqlite", "duckdb", "s3", "gs", "azure")):
        tables = sql_tables(url)
        with tables.engine.connect() as connection:
            assert not sa.inspect(connection).has_table("run_log_version", tables.schema)
    if url.startswith("s3"):
        assert list(open_object_store(url).names("")) == []


def test_the_last_batch_is_known(log: RunLog) -> None:
    log.start(record(batch="run:1"))
    later = record(started_at=NOON + dt.timedelta(hours=1))
    log.start(later)
    assert getattr(log.last_batch("orders"), "batch", None) == "run:1"
    log.record_batch(later.run_id, "run:2", ["t"])
    assert getattr(log.last_batch("orders"), "overdue", None) == ("t",)
    assert log.last_batch("others") is None


def test_the_engine_of_a_run_that_was_killed_is_known(log: RunLog) -> None:
    one = record()
    log.start(one)
    log.record_engine(one.run_id, "local[2], Spark 4.1.3")
    log.settle(one.run_id, "interrupted", "it died")
    assert log.get(one.run_id).engine == "local[2], Spark 4.1.3"


def test_the_end_of_what_others_settled_counts_once(log: RunLog) -> None:
    """Two processes report how a run ended: the store takes one report."""
    one = record()
    log.start(one)
    with ThreadPoolExecutor(4) as pool:
        heard = list(
            pool.map(lambda n: log.finish(one.run_id, "succeeded", rows=RowCounts(read=n)), range(4))
        )
    assert heard.count(True) == 1
    assert log.get(one.run_id).rows.read == heard.index(True)


def test_names_are_distinguished_as_they_are_written(log: RunLog) -> None:
    for name in ("Orders", "orders", "ordérs", "orders "):
        log.start(record(name))
    assert [len(log.list(name)) for name in ("Orders", "orders", "ordérs", "orders ")] == [1, 1, 1, 1]


def test_an_id_is_given_once(log: RunLog) -> None:
    one = record()
    log.start(one)
    with pytest.raises(UsageError, match="already has a run"):
        log.start(one)


def test_many_runs_are_recorded_at_once(log: RunLog) -> None:
    many = [record(f"p{each}", status="skipped", finished_at=NOON, slot=NOON) for each in range(3)]
    log.start_all(many)
    log.start_all([])
    assert [log.get(each.run_id) for each in many] == many
    assert [log.list(each.pipeline) for each in many] == [(each,) for each in many]
    with pytest.raises(UsageError, match="already has a run"):
        log.start_all([record(), many[0]])


def test_slots_are_stored_next_to_the_runs(url: str, log: RunLog) -> None:
    slot = Slot("orders", NOON)
    first, second = open_slots(url, env={}), open_slots(url, env={})
    assert (first.open([slot]), second.open([slot])) == (1, 0)
    seen = second.get(slot)
    assert seen is not None
    claim = first.claim(seen, "a", 30)
    assert claim is not None and second.claim(seen, "b", 30) is None
    assert second.renew(claim, 30) and second.end(claim, "succeeded")
    assert first.unfinished() == []
    lease = first.lease("scheduler", "a", 60)
    assert lease is not None and second.lease("scheduler", "b", 60) is None


@pytest.mark.parametrize(
    "dead",
    [
        "postgres://user:hunter2@127.0.0.1:1/db",
        "mysql://user:hunter2@127.0.0.1:1/db",
        "s3://key:hunter2@bucket/p?endpoint=http://127.0.0.1:1",
        "gs://bucket/p?endpoint=http://127.0.0.1:1&anonymous=true",
        "azureblob://acct/container?endpoint=http://127.0.0.1:1/acct&account_key=aHVudGVyMg==",
    ],
)
def test_a_server_that_is_away_is_one_warning_for_a_run_and_an_error_for_a_reader(
    dead: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    with open_run_log(dead, env={}) as forgetful:
        forgetful.start(record())
    assert "Runs go on, but are not recorded" in caplog.text and "hunter2" not in caplog.text
    with pytest.raises(FlowError) as raised:
        open_run_log(dead, env={}, reading=True)
    assert "hunter2" not in str(raised.value)
    with pytest.raises(FlowError):
        open_slots(dead, env={})


def test_later_metrics_are_added_to_those_of_a_run(log: RunLog) -> None:
    one = record()
    log.start(one)
    log.finish(one.run_id, "failed", metrics={"stages": {"read": 1.5}})
    log.add_metrics(one.run_id, {"alerts": [{"to": "ü"}]})
    log.add_metrics(one.run_id, {"alerts": [{"to": "ü"}, {"to": "b", "url": "postgres://u:hunter22@h/d"}]})
    log.add_metrics("no such run", {"alerts": []})
    found = log.get(one.run_id)
    assert found.status == "failed" and found.metrics["stages"] == {"read": 1.5}
    assert [each["to"] for each in found.metrics["alerts"]] == ["ü", "b"]
    assert "hunter22" not in str(found.metrics)


def test_a_store_that_goes_away_does_not_stop_a_run(
    gcs: GcsServer, gcs_bucket: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    one, another = record(), record()
    with open_run_log(gcs.url(gcs_bucket), env={}, reading=True) as log:
        log.start(one)
        gcs.stop()
        log.start(another)
        log.save_output(another.run_id, "not asked again so soon")
        assert not log.finish(one.run_id, "succeeded")
        with pytest.raises(FlowError, match="cannot be"):
            log.list()
    assert caplog.text.count("The run goes on") == 1


@pytest.mark.parametrize("kind", OBJECTS)
def test_objects_of_a_later_version_are_refused(request: pytest.FixtureRequest, kind: str) -> None:
    url = object_url(request, kind)
    open_run_log(url, env={}, reading=True).close()
    store = open_object_store(url)
    found = store.read("run_log_version")
    assert found is not None and store.replace("run_log_version", {"version": 99}, found.tag)
    store.close()
    with pytest.raises(ConfigError, match="has version 99"):
        open_run_log(url, env={}, reading=True)
    with pytest.raises(ConfigError, match="has version 99"):
        open_slots(url, env={})


@pytest.mark.parametrize("kind", OBJECTS)
def test_a_list_reads_what_it_shows_and_no_more(request: pytest.FixtureRequest, kind: str) -> None:
    store = open_object_store(object_url(request, kind))
    log = ObjectRunLog(store)
    for n in range(40):
        one = record("ab"[n % 2], started_at=NOON + dt.timedelta(minutes=n))
        log.start(one)
        log.finish(one.run_id, "failed" if n % 10 == 0 else "succeeded")
    fetched: list[str] = []
    fetch = store.fetch
    store.fetch = lambda key: (fetched.append(key), fetch(key))[1]  # type: ignore[method-assign]
    assert len(log.list(limit=3)) == 3 and len(fetched) <= 3
    assert len(log.list("a", "failed", limit=4)) == 4 and len(fetched) <= 3 + 4
    assert len(log.newest(["a", "b"])) == 2 and len(fetched) <= 3 + 4 + 2
    log.close()


def test_what_a_crash_left_half_written_is_put_right(s3: S3Server, request: pytest.FixtureRequest) -> None:
    """A run whose end was written, and not yet in the lists."""
    store = open_object_store(object_url(request, "s3"))
    log, one = ObjectRunLog(store), record()
    log.start(one)
    mark_all = store.mark_all
    store.mark_all = lambda keys: (_ for _ in ()).throw(KeyboardInterrupt)  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        log.finish(one.run_id, "succeeded", rows=RowCounts(read=3))
    store.mark_all = mark_all  # type: ignore[method-assign]
    assert [found.rows.read for found in log.list("orders", "succeeded")] == [3]
    assert log.list("orders", "running") == () and log.running("orders") == ()
    assert list(store.names("running/")) == []
    assert [found.rows.read for found in log.list("orders", "succeeded")] == [3]
    log.close()
