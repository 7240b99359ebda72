"""One contract over every store of the recorded runs of probes."""

from __future__ import annotations

import datetime as dt
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ematix_probe.errors import CannotConnect, HistoryError, ProbeError
from ematix_probe.history.records import LONGEST_NAME
from ematix_probe.report import AssertionResult
from ematix_probe.run_history import RunHistory
from tests.contract.chosen import shared_out
from tests.contract.history_writers import NOON, report
from tests.contract.object_stores import OBJECTS, object_url

KINDS = ["sqlite", "postgres", "s3", *shared_out("duckdb", "mariadb", "gcs", "mysql", "azure")]
WRITER = (sys.executable, str(Path(__file__).with_name("history_writers.py")))


@pytest.fixture(params=KINDS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    kind = request.param
    if kind in ("sqlite", "duckdb"):
        return f"{kind}://{tmp_path}/history.db"
    if kind in OBJECTS:
        return object_url(request, kind)
    found: str = request.getfixturevalue({"postgres": "pg_database"}.get(kind, f"{kind}_database"))
    return found


@pytest.fixture
def history(url: str) -> Iterator[RunHistory]:
    with RunHistory(url) as opened:
        yield opened


def test_a_recorded_run_reads_back_whole(history: RunHistory) -> None:
    id = history.record(
        report("orders", 3, {"row_count": 12, "share": 0.25, "sum": "1.10"}, "warn", "pass", "fail")
    )
    found = history.run(id)
    assert (found.id, found.probe_name, found.table, found.schema) == (id, "orders", "orders", "shop")
    assert (found.verdict, found.started_at, found.duration_seconds) == (
        "fail",
        NOON + dt.timedelta(hours=3),
        1.5,
    )
    assert dict(found.metadata) == {"source": "here", "n": 3}
    assert dict(found.counts) == {"warn": 1, "pass": 1, "fail": 1}
    assert [
        (a.index, a.name, a.verdict, a.message, a.kind, a.failing, a.checked) for a in found.assertions
    ] == [
        (0, "c0.rule", "warn", "message 0 of run 3", "rule", 0, 10),
        (1, "c1.rule", "pass", "message 1 of run 3", "rule", 1, 10),
        (2, "c2.rule", "fail", "message 2 of run 3", "rule", 2, 10),
    ]
    assert dict(found.assertions[0].measures) == {"row_count": 12, "share": 0.25, "sum": "1.10"}
    assert [list(each.samples) for each in found.assertions] == [[], [], []]


def test_an_empty_history_has_nothing_and_stays_as_it_is(history: RunHistory, tmp_path: Path) -> None:
    assert list(history.runs()) == []
    assert list(history.probes()) == []
    assert history.past("orders", "c0.rule") == []
    assert history.prune(keep=1) == 0
    assert history.check() == "no run is recorded yet"
    with pytest.raises(HistoryError, match="has no run 1"):
        history.run(1)
    with pytest.raises(HistoryError, match="has no run of 'orders'"):
        history.trend("orders")
    assert list(tmp_path.iterdir()) == []


def test_runs_are_listed_newest_first_page_by_page_and_by_probe(history: RunHistory) -> None:
    ids = [history.record(report(name, n)) for n, name in enumerate(["a", "b", "a", "b", "a"])]
    assert ids == sorted(ids)
    newest = history.runs(limit=2)
    assert [run.id for run in newest] == ids[:2:-1]
    assert [run.id for run in history.runs(before=newest[-1].id)] == ids[2::-1]
    assert [run.id for run in history.runs("b")] == [ids[3], ids[1]]
    assert [dict(run.counts) for run in history.runs("b")] == [{"pass": 1}, {"pass": 1}]
    assert list(history.probes()) == ["a", "b"]
    assert list(history.runs("no")) == []
    assert list(history.runs(limit=0)) == []
    assert list(history.runs(before=2**70)) == list(history.runs())
    with pytest.raises(HistoryError, match="has no run"):
        history.run(2**70)


def test_the_past_of_an_assertion_is_newest_first_without_runs_that_measured_nothing(
    history: RunHistory,
) -> None:
    for number, rows in enumerate([10, 11, None, 13]):
        history.record(report("orders", number, None if rows is None else {"row_count": rows}))
    history.record(report("orders.old", 9, {"row_count": 99}))
    assert history.past("orders", "c0.rule") == [{"row_count": 13}, {"row_count": 11}, {"row_count": 10}]
    assert history.past("orders", "c0.rule", limit=2) == [{"row_count": 13}, {"row_count": 11}]
    assert history.past("orders", "c1.rule") == []
    assert history.past("Orders", "c0.rule") == []


def test_a_trend_is_oldest_first_with_gaps_where_an_assertion_was_not_there(history: RunHistory) -> None:
    history.record(report("orders", 1, {"row_count": 10}, "pass"))
    history.record(report("orders", 2, {"row_count": 12}, "fail", "pass"))
    found = history.trend("orders")
    assert [run.started_at.hour for run in found.runs] == [13, 14]
    first, second = found.assertions
    assert (first.name, list(first.verdicts), first.measures) == (
        *("c0.rule", ["pass", "fail"]),
        {"row_count": [10, 12]},
    )
    assert (second.name, list(second.verdicts)) == ("c1.rule", [None, "pass"])
    assert [each.name for each in history.trend("orders", "c1.rule").assertions] == ["c1.rule"]


def test_prune_deletes_old_runs_and_keeps_the_newest_of_each_probe(history: RunHistory) -> None:
    for number in range(4):
        history.record(report("a", number))
        history.record(report("b", number))
    assert history.prune(keep=1, probe="a", older_than=dt.timedelta(days=36_500)) == 0
    assert history.prune(keep=3, probe="a") == 1
    assert history.prune(keep=2) == 1 + 2
    assert [run.probe_name for run in history.runs()] == ["b", "a", "b", "a"]
    kept = history.runs("a")[-1]
    assert history.run(kept.id).assertions[0].name == "c0.rule"
    assert history.prune(keep=0, probe="a") == 2
    assert list(history.probes()) == ["b"]


HOSTILE = [
    "naïve ☃",
    "a/b\\c",
    "..",
    "100%_[x]*",
    "q'u\"o`te;--",
    "Orders",
    "orders ",
    "x\0y\ud800",
    "n" * 3000,
]


def test_every_name_is_kept_apart_exactly(history: RunHistory) -> None:
    history.record(report("orders"))
    for name in HOSTILE:
        odd = report(name, 1, {name: 1})
        history.record(replace(odd, table=name, metadata={name: name}, schema=None))
    assert len(history.probes()) == 1 + len(HOSTILE)
    for name in HOSTILE:
        (run,) = history.runs(name)
        assert len(run.probe_name) <= LONGEST_NAME
        assert len(history.past(name, "c0.rule")) == 1
    assert len(history.runs("orders")) == 1
    assert {"Orders", "orders", "orders "} < set(history.probes())


def test_a_report_of_any_size_is_recorded_and_bounded(history: RunHistory) -> None:
    many = [
        AssertionResult(
            n, "fail", "m" * 50_000, f"rule {n}", measures={"row_count": 2**62, "nan": float("nan")}
        )
        for n in range(300)
    ]
    large = replace(report(), assertions=many, metadata={"histogram": ["x"] * 100_000, "small": 1})
    found = history.run(history.record(large))
    assert len(found.assertions) == 300
    assert [each.index for each in found.assertions] == list(range(300))
    assert {len(each.message) for each in found.assertions} == {10_000}
    assert dict(found.assertions[7].measures) == {"row_count": 2**62, "nan": "nan"}
    assert dict(found.metadata) == {"small": 1}


def test_no_secret_is_recorded_nor_shown(history: RunHistory, url: str) -> None:
    leaky = "postgres://eve:geheim1@db/shop"
    odd = AssertionResult(
        0, "fail", f"cannot reach {leaky}", "a", measures={"url": leaky}, samples=[{"u": leaky}]
    )
    opened = RunHistory(url, samples=True)
    id = opened.record(replace(report(), assertions=[odd], table=leaky, metadata={"source": leaky}))
    shown = str(history.run(id).to_dict())
    assert "geheim1" not in shown
    assert shown.count("eve:***@db") == 5
    secret = url.partition("://")[2].rpartition("@")[0].partition(":")[2]
    assert not secret or secret not in history.location


# ------------------------------------------------------------------------- several processes


def test_processes_that_record_into_a_new_history_at_once_lose_no_run(url: str) -> None:
    done = subprocess.run([*WRITER, url, "5"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    history = RunHistory(url)
    runs = history.runs(limit=100)
    assert len({run.id for run in runs}) == 15
    assert {tuple(sorted(run.counts.items())) for run in runs} == {(("fail", 1), ("pass", 1))}
    for number in range(5):
        past = history.past(f"probe {number}", "c0.rule")
        assert [each["row_count"] for each in past] == [2, 1, 0]


def test_threads_share_a_history(history: RunHistory) -> None:
    with ThreadPoolExecutor(4) as pool:
        ids = list(pool.map(lambda number: history.record(report("orders", number)), range(12)))
    assert len(set(ids)) == 12
    assert {run.id for run in history.runs()} == set(ids)


def test_a_process_that_is_killed_while_it_records_leaves_whole_runs_and_no_lock(url: str) -> None:
    history = RunHistory(url)
    known = history.record(report("orders", 0, None, *["pass"] * 40))
    for times in (1, 3):
        with subprocess.Popen([*WRITER, url], stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            for _ in range(times):  # it has begun another run when it reports this one
                assert writer.stdout.readline() == "recorded\n"
            writer.kill()
        assert writer.returncode == -signal.SIGKILL
        runs = history.runs(limit=1000)
        assert len(runs) >= 2
        assert {tuple(run.counts.items()) for run in runs} == {(("pass", 40),)}
        assert history.record(report("orders", 9, None, *["pass"] * 40)) > known


# ------------------------------------------------------------------------- what cannot be used


UNREACHABLE = {
    "postgresql": "postgresql://eve:geheim1@127.0.0.1:9/x",
    "mysql": "mysql://eve:geheim1@127.0.0.1:9/x",
    "s3": "s3://bucket/x?endpoint=http://127.0.0.1:9&access_key_id=AKIAX&secret_access_key=geheim1",
}


@pytest.mark.parametrize("kind", ["postgresql", "mysql"])
def test_a_server_that_cannot_be_reached_is_said_without_the_password(kind: str) -> None:
    with pytest.raises(CannotConnect, match=f"the history {kind}://.* cannot be reached") as raised:
        RunHistory(UNREACHABLE[kind]).record(report())
    assert "geheim1" not in str(raised.value)


@pytest.mark.long  # the client of S3 tries again for a while
def test_a_bucket_that_cannot_be_reached_is_said_without_the_key() -> None:
    with pytest.raises(CannotConnect, match=r"the history s3://bucket/x cannot be used") as raised:
        RunHistory(UNREACHABLE["s3"]).record(report())
    assert "geheim1" not in str(raised.value)


def test_a_history_of_a_later_version_is_refused_unchanged(url: str) -> None:
    history = RunHistory(url)
    history.record(report())
    raise_version(history)
    for use in (lambda: RunHistory(url).runs(), lambda: RunHistory(url).past("orders", "c0.rule")):
        with pytest.raises(HistoryError, match=r"later version|has version 99") as raised:
            use()
        assert "upgrade ematix-probe" in str(raised.value.next_step)
    if not is_in_a_bucket(url):  # where each object has its own version
        with pytest.raises(HistoryError, match="has version 99"):
            RunHistory(url).record(report())


def test_what_is_no_run_is_an_error_and_not_a_traceback(s3: Any, s3_bucket: str) -> None:
    from pyarrow import fs

    url = f"s3://{s3_bucket}/runs?" + "&".join(
        f"{name}={value}" for name, value in s3.connection_fields(s3_bucket).items() if name != "bucket"
    )
    history = RunHistory(url)
    history.record(report())
    files = fs.S3FileSystem(
        access_key=s3.keys.access,
        secret_key=s3.keys.secret,
        endpoint_override=s3.endpoint,
        region="us-east-1",
    )
    (path,) = (
        each.path
        for each in files.get_file_info(fs.FileSelector(f"{s3_bucket}/runs", recursive=True))
        if each.is_file
    )
    for content in (b"[]", b"{", b'{"id": 1}', b'{"started_at": "soon"}'):
        with files.open_output_stream(path) as out:
            out.write(content)
        with pytest.raises(ProbeError, match="has an object that is no run"):
            RunHistory(url).runs()


def is_in_a_bucket(url: str) -> bool:
    from ematix_probe.history.locations import OBJECTS as SCHEMES

    return url.partition("://")[0] in SCHEMES


def raise_version(history: RunHistory) -> None:
    """Let a later version of this package have written what is there."""
    import json

    import sqlalchemy as sa

    store: Any = history._store
    if is_in_a_bucket(history.location):
        with store._bucket() as bucket:
            (path,) = store._paths(bucket, "orders", None)
            with bucket.files.open_input_stream(path) as stream:
                document = json.loads(stream.read())
            with bucket.files.open_output_stream(path) as out:
                out.write(json.dumps({**document, "version": 99}).encode())
        return
    with store._database.engine(write=True).connect() as connection, connection.begin():
        if history.location.startswith("sqlite"):
            connection.exec_driver_sql("PRAGMA user_version = 99")
        else:
            connection.execute(sa.update(store._tables.version).values(version=99))
