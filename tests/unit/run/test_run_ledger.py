"""What the targets of a run committed, as `flow runs show --ledger` and the page of a run read it."""

from __future__ import annotations

import datetime as dt
import os
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import pytest

from ematix_flow import BigInt, SQLiteConnection, Target, Text, ematix, pk, register_connection
from ematix_flow.backends.base import LedgerEntry
from ematix_flow.backends.lake.journal import open_journal
from ematix_flow.backends.stores.local_store import LocalStore
from ematix_flow.graph.registry import current_registry
from ematix_flow.run import run_ledger
from ematix_flow.run.context_setup import refuse_spark
from ematix_flow.run.quarantine import Quarantine
from ematix_flow.run.run_ledger import MOST_SHOWN, TargetLedger, read_run_ledger
from ematix_flow.spec.connections import DeltaLocalConnection, KafkaConnection, PostgresConnection
from ematix_flow.spec.row_counts import UNKNOWN_ROWS, RowCounts
from ematix_flow.state.local_stores import open_local_run_log
from ematix_flow.state.runlog.records import RunRecord
from ematix_flow.state.times import utc_now
from tests.unit.run.sqlite_file import execute

NOON = utc_now().replace(hour=12, minute=0, second=0, microsecond=0) - dt.timedelta(days=1)
SECRET = "hunter2hunter2"


@ematix.table(schema="main")
class People:
    id: Annotated[BigInt, pk()]
    name: Text | None


@ematix.table(schema="main")
class Others:
    id: Annotated[BigInt, pk()]
    name: Text | None


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """A database with three people, which is the connection ``shop``."""
    file = tmp_path / "shop.db"
    execute(file, "CREATE TABLE raw_people (id INTEGER, name TEXT)")
    execute(file, "INSERT INTO raw_people VALUES (1, 'Ada'), (2, 'Bob'), (3, 'Cy')")
    register_connection(SQLiteConnection(name="shop", path=str(file)))
    return file


def declare(*targets: Target, **options: Any) -> Any:
    given = {"targets": list(targets), "source_connection": "shop", "mode": "append", **options}

    @ematix.pipeline(name="people", **given)
    def people(conn: Any) -> str:
        return "SELECT id, name FROM raw_people"

    return people


def newest() -> RunRecord:
    with open_local_run_log(env=os.environ, reading=True) as log:
        return log.list("people")[0]


def read(record: RunRecord, seconds: float = 60.0) -> list[TargetLedger]:
    return read_run_ledger(current_registry(), record, seconds)


def record_of(pipeline: str, target: str, **fields: Any) -> RunRecord:
    values = {"status": "succeeded", "started_at": NOON, "finished_at": NOON + dt.timedelta(hours=1)}
    return RunRecord("feedbeef", pipeline, target, "append", **{**values, **fields})


def entry(pipeline: str, label: str, key: str, minutes: float) -> LedgerEntry:
    at = NOON + dt.timedelta(minutes=minutes)
    return LedgerEntry(pipeline, label, key, f"run of {key}", None, None, RowCounts(read=1, inserted=1), at)


# ------------------------------------------------------------------ runs of pipelines


def test_each_target_has_the_entry_of_the_run_with_its_rows_and_its_range(database: Path) -> None:
    load = declare(
        Target(connection="shop", table=People),
        Target(connection="shop", table=Others),
        incremental=True,
        watermark_column="id",
    )
    load.sync()
    execute(database, "INSERT INTO raw_people VALUES (7, 'Di')")
    load.sync()
    record = newest()
    found = read(record)
    assert [(each.target, each.note, each.error) for each in found] == [
        ("shop:main.people", None, None),
        ("shop:main.others", None, None),
    ]
    for each in found:
        (shown,) = each.to_json()["entries"]
        assert (shown["pipeline"], shown["target"]) == ("people", each.target)
        assert shown["run_id"] == record.run_id and record.run_id in shown["batch_key"]
        assert (shown["rows_inserted"], shown["rows_updated"], shown["rows_deleted"]) == (1, 0, 0)
        assert (shown["source_from"], shown["source_to"]) == ("3", "7")
        assert record.started_at <= dt.datetime.fromisoformat(shown["committed_at"])


def test_a_run_that_committed_nothing_has_no_entry_and_a_note(database: Path) -> None:
    load = declare(Target(connection="shop", table=People))
    load.sync()
    failed = never_loaded(newest())
    (found,) = read(failed)
    assert (
        found.entries == () and found.note == "the ledger has no entry of this run: it committed nothing here"
    )
    (running,) = read(replace(failed, status="running", finished_at=None))
    assert running.note == "nothing is committed for this run yet"


def test_a_batch_that_another_run_had_committed_is_shown_with_that_run(database: Path) -> None:
    declare(Target(connection="shop", table=People)).sync()
    record = newest()
    (found,) = read(replace(record, run_id="0" * 32))
    assert [each.run_id for each in found.entries] == [record.run_id]
    assert (
        found.note
        == f"run {record.run_id[:8]} committed the batch of this run; this run did not load it again"
    )


def never_loaded(record: RunRecord, **fields: Any) -> RunRecord:
    """The same run, as if it had failed before it committed."""
    values = {"run_id": "0" * 32, "batch": "run:nothing", "status": "failed", "rows": UNKNOWN_ROWS}
    return replace(record, **{**values, "metrics": {}, **fields})


def test_a_run_that_recorded_rows_is_not_said_to_have_committed_nothing(database: Path) -> None:
    declare(Target(connection="shop", table=People)).sync()
    record = newest()
    execute(database, f"DELETE FROM {ledger_table(database)}")
    lost = (
        "the ledger no longer has the entry of this run, which recorded rows: it was emptied or restored, or "
        "the connection leads to another place now"
    )
    assert [each.note for each in read(record)] == [lost]
    older = replace(record, metrics={})  # of a version that recorded only the rows of the whole run
    assert [each.note for each in read(older)] == [lost]


def test_of_several_targets_the_one_without_rows_committed_nothing(database: Path) -> None:
    declare(Target(connection="shop", table=People), Target(connection="shop", table=Others)).sync()
    record = newest()
    execute(database, f"DELETE FROM {ledger_table(database)}")
    record.metrics["targets"][1] |= {"status": "failed", "rows_read": 0, "rows_inserted": 0}
    lost, failed = read(record)
    assert (lost.note or "").startswith("the ledger no longer has the entry of this run")
    assert failed.note == "the ledger has no entry of this run: it committed nothing here"


def test_a_batch_of_another_run_is_found_behind_many_later_entries(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(Target(connection="shop", table=People)).sync()
    record = newest()
    label, later = "shop:main.people", utc_now() + dt.timedelta(minutes=1)
    rows = [
        f"('people', '{label}', 'run:{n}', '{n}', NULL, NULL, 1, 1, 0, 0, '{later:%Y-%m-%d %H:%M:%S.%f}')"
        for n in range(150)
    ]
    execute(database, f"INSERT INTO {ledger_table(database)} VALUES {', '.join(rows)}")
    retry = never_loaded(record, batch=record.batch)
    (found,) = read(retry)
    assert [each.run_id for each in found.entries] == [record.run_id]
    monkeypatch.setattr(run_ledger, "MOST_READ", 140)
    (unread,) = read(retry)
    assert unread.entries == ()
    assert unread.note == (
        "none of the newest 140 entries is of this run or its batch; older entries were not read"
    )


def test_a_replay_of_quarantined_rows_has_its_entry(database: Path) -> None:
    declare(
        Target(connection="shop", table=People), expectations=[ematix.expect_or_drop("few", "id < 3")]
    ).sync()
    current_registry().pipelines.clear()
    milder = declare(
        Target(connection="shop", table=People), expectations=[ematix.expect_or_drop("few", "id < 4")]
    )
    result = Quarantine(milder.spec, refuse_spark).replay()
    with open_local_run_log(env=os.environ, reading=True) as log:
        record = log.get(result.run_id)
    assert record.pipeline == "replay:people"
    ((found,),) = [each.entries for each in read(record)]
    assert (found.batch_key, found.rows.inserted) == (f"replay:{record.run_id}", 1)


def test_a_target_that_cannot_be_reached_says_why_and_hides_no_other(database: Path) -> None:
    register_connection(PostgresConnection(name="away", url=f"postgres://etl:{SECRET}@127.0.0.1:1/db"))
    declare(Target(connection="shop", table=People), Target(connection="away", table=Others))
    ok, failed = read(record_of("people", "shop:main.people, away:main.others"))
    assert ok.error is None and ok.note is not None
    assert failed.error is not None and "127.0.0.1" in failed.error.what
    assert SECRET not in str(failed.to_json())


@pytest.fixture
def silent_server() -> Iterator[int]:
    """The port of a server that accepts connections and never answers."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield listening.getsockname()[1]


def test_a_target_that_never_answers_is_given_up_and_hides_no_other(
    database: Path, silent_server: int
) -> None:
    url = f"postgres://etl:{SECRET}@127.0.0.1:{silent_server}/db?sslmode=disable"
    register_connection(PostgresConnection(name="silent", url=url))
    load = declare(Target(connection="shop", table=People))
    load.sync()
    record = newest()
    both = (Target(connection="silent", table=Others), Target(connection="shop", table=People))
    current_registry().pipelines.clear()
    declare(*both)
    failed, ok = read(replace(record, target="silent:main.others, shop:main.people"), seconds=5)
    assert failed.error is not None
    assert failed.error.what == "silent:main.others did not answer within 5 s"
    assert "flow connections check silent" in (failed.error.next_step or "")
    assert [each.run_id for each in ok.entries] == [record.run_id]


def test_what_has_no_ledger_says_so(database: Path) -> None:
    declare(Target(connection="shop", table=People))
    notes = {
        name: read(record_of(name, "shop:main.others"))[0].note
        for name in ("people", "gone", "maintain:people")
    }
    assert notes == {
        "people": "'people' no longer has this target, so it is not asked",
        "gone": "the module does not declare 'gone', so it is not known how to reach this target",
        "maintain:people": "flow maintain commits no batch, so no ledger has an entry of this run",
    }


# ------------------------------------------------------------------ lakes


def test_the_journal_of_a_lake_is_read_without_spark(database: Path, tmp_path: Path) -> None:
    register_connection(DeltaLocalConnection(name="lake", path=str(tmp_path / "lake")))
    declare(Target(connection="lake", table=People))
    store = LocalStore(str(tmp_path / "lake"))
    journal = open_journal(store, "main/people", lambda token: False)
    commit, written = journal.next_commit(), entry("people", "lake:main.people", "run:1", 30)
    journal.write_entry(commit, written, None)
    record = record_of("people", "lake:main.people", batch="run:1")
    for version in range(31):  # so many that the table's log is not searched for the commit, but its history
        store.create(f"main/people/_delta_log/{version:020d}.json", "{}")
    (unmarked,) = read(record)
    assert unmarked.entries == () and unmarked.error is None
    assert unmarked.note == "its ledger can be read by Spark only, which is not started to show it"
    journal.mark_committed(commit, written, None)
    (found,) = read(record)
    assert [each.batch_key for each in found.entries] == ["run:1"]


# ------------------------------------------------------------------ streams


def follow(**options: Any) -> None:
    bus = KafkaConnection(name="bus", bootstrap_servers="127.0.0.1:1")
    declare_stream = ematix.streaming_pipeline(name="clicks", source=bus, source_query="clicks", **options)
    declare_stream(lambda: None)


def test_a_run_of_a_stream_has_the_batches_that_committed_during_it(database: Path) -> None:
    declare(Target(connection="shop", table=People)).sync()  # so that there is a ledger
    follow(target=People, target_connection="shop")
    label = "shop:main.people"
    times = {"stream:q:0": -1, "stream:q:1": 1, "stream:q:2": 59, "stream:q:3": 61, "dlq:r:0": 30}
    rows = [
        f"('clicks', '{label}', '{key}', '{key}', NULL, NULL, 1, 1, 0, 0, "
        f"'{(NOON + dt.timedelta(minutes=minutes)):%Y-%m-%d %H:%M:%S.%f}')"
        for key, minutes in times.items()
    ]
    execute(database, f"INSERT INTO {ledger_table(database)} VALUES {', '.join(rows)}")

    def keys(**fields: Any) -> list[str]:
        (found,) = read(record_of(fields.pop("pipeline", "clicks"), label, **fields))
        return [each.batch_key for each in found.entries]

    assert keys() == ["stream:q:2", "stream:q:1"]
    assert keys(status="running", finished_at=None) == ["stream:q:3", "stream:q:2", "stream:q:1"]
    assert keys(pipeline="replay:clicks") == ["dlq:r:0"]


def add_batches(database: Path, numbers: range, started_at: dt.datetime = NOON) -> None:
    """A ledger with a batch of ``clicks`` for each number, so many seconds after the start."""
    rows = [
        f"('clicks', 'shop:main.people', 'stream:q:{n}', '{n}', NULL, NULL, 1, 1, 0, 0, "
        f"'{(started_at + dt.timedelta(seconds=n)):%Y-%m-%d %H:%M:%S.%f}')"
        for n in numbers
    ]
    execute(database, f"INSERT INTO {ledger_table(database)} VALUES {', '.join(rows)}")


@pytest.fixture
def clicks(database: Path) -> Path:
    """The database, with a ledger and a stream into it."""
    declare(Target(connection="shop", table=People)).sync()
    follow(target=People, target_connection="shop")
    return database


def test_of_a_run_with_many_batches_the_newest_are_shown(clicks: Path) -> None:
    record = record_of("clicks", "shop:main.people")
    add_batches(clicks, range(150))
    (found,) = read(record)
    assert (len(found.entries), found.entries[0].batch_key) == (MOST_SHOWN, "stream:q:149")
    assert found.note == "the newest 100 of 150 batches"
    add_batches(clicks, range(150, 1_200))
    (found,) = read(record)
    assert len(found.entries) == MOST_SHOWN
    assert found.note == (
        "the newest 100 of 1,000 batches among the newest 1,000 entries of the ledger; "
        "older entries were not read"
    )
    (found,) = read(replace(record, finished_at=NOON + dt.timedelta(seconds=201)))
    assert len(found.entries) == 2
    assert found.note == (
        "2 batches among the newest 1,000 entries of the ledger; older entries were not read"
    )
    (found,) = read(replace(record, finished_at=NOON + dt.timedelta(seconds=100)))
    assert (found.entries, found.note) == (
        (),
        "none of the newest 1,000 entries is of this run; older entries were not read",
    )


def test_an_older_run_of_a_stream_is_not_said_to_have_committed_nothing(clicks: Path) -> None:
    """A ledger keeps the batches of a stream for seven days, and the run log its runs for longer."""
    days = [utc_now() - dt.timedelta(days=back) for back in range(10)]
    loaded = replace(UNKNOWN_ROWS, read=900, inserted=900)

    def note(**fields: Any) -> str | None:
        return read(record_of("clicks", "shop:main.people", **fields))[0].note

    old = {"started_at": days[9], "finished_at": days[8]}
    kept = "it keeps the batches of a stream for 7 days"
    assert note(**old, rows=loaded) == (
        f"the ledger no longer has the entries of this run: {kept}, and this run began earlier"
    )
    assert note(**old) == f"the ledger has no entry of this run: {kept}, and this run began earlier"
    new = {"started_at": days[2], "finished_at": days[1]}
    assert note(**new) == "the ledger has no entry of this run: it committed nothing here"
    assert note(**new, rows=replace(UNKNOWN_ROWS, read=9, inserted=0)) == note(**new)
    assert note(**new, rows=loaded) == (
        "the ledger no longer has the entries of this run, which recorded rows: it was emptied or restored, "
        "or the connection leads to another place now"
    )
    running = {"status": "running", "finished_at": None}
    assert note(started_at=days[1], **running) == "nothing is committed for this run yet"
    add_batches(clicks, range(3), days[6])
    assert note(started_at=days[9], **running) == f"older ones may be gone: {kept}"


def ledger_table(database: Path) -> str:
    (name,) = execute(
        database, "SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE '%ledger%'"
    )
    return f'"{name[0]}"'


def test_a_broker_keeps_no_ledger(database: Path) -> None:
    follow(target=KafkaConnection(name="out", bootstrap_servers="127.0.0.1:1"), target_topic="done")
    label = current_registry().streams["clicks"].spec.targets[0].label
    (found,) = read(record_of("clicks", label))
    assert found.note == "a message broker keeps no ledger" and found.error is None
