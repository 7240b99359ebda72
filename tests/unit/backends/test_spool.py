"""What a spool keeps on disk, what it repairs, and when it acknowledges to the source."""

from __future__ import annotations

import datetime as dt
import os
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from ematix_flow import fault_points
from ematix_flow.backends.messages.base import Message, message_schema
from ematix_flow.backends.spool import known_messages
from ematix_flow.backends.spool.known_messages import digest_of
from ematix_flow.backends.spool.spool import Spool
from ematix_flow.errors import CannotConnect, PipelineLocked, SourceFailed
from tests.property.broker_model import Broker, BrokerReceiver, Log

POINTS = ("spool.written", "spool.indexed", "spool.renamed", "spool.settled", "spool.acknowledged")


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def driven(folder: Path, receiver: Any, **limits: Any) -> Spool:
    spool = Spool(folder).open()
    spool.follow(receiver, thread=False, **{"linger": 0, **limits})
    return spool


def broker_with(*values: bytes) -> Broker:
    broker = Broker()
    for value in values:
        broker.publish(value)
    return broker


def values_in(spool: Spool) -> list[bytes]:
    tables = [pq.read_table(spool.segments / name) for name in spool.pending_segments()]
    return [value for table in tables for value in table.column("value").to_pylist()]


def test_a_segment_holds_every_column_of_a_message(tmp_path: Path) -> None:
    at = dt.datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=dt.timezone.utc)
    broker = Broker()
    broker.ready = [
        Message(b"\x00\xff", b"key", "topic", "7", "m-1", at, '{"a": "ü"}'),
        Message(None),
    ]
    spool = driven(tmp_path, BrokerReceiver(broker))
    spool.run_once()
    table = pq.read_table(spool.segments / spool.pending_segments()[0])
    assert table.schema.equals(message_schema())
    assert table.to_pylist() == [
        {
            "value": b"\x00\xff",
            "key": b"key",
            "topic": "topic",
            "partition": "7",
            "position": "m-1",
            "timestamp": at,
            "headers": '{"a": "ü"}',
        },
        dict.fromkeys(message_schema().names),
    ]
    spool.close()


def test_a_message_is_acknowledged_when_its_segment_is_settled_and_not_before(tmp_path: Path) -> None:
    broker = broker_with(b"a", b"b", b"c")
    spool = driven(tmp_path, BrokerReceiver(broker), max_rows=2)
    spool.run_once()
    spool.run_once()
    assert len(broker.unacknowledged) == 3
    spool.settle(spool.pending_segments()[:1])
    assert len(broker.unacknowledged) == 3
    spool.run_once()
    assert [message.value for message in broker.unacknowledged.values()] == [b"c"]
    assert spool.pending_rows() == 1
    spool.close()


def test_the_files_of_settled_segments_go_with_the_next_settling(tmp_path: Path) -> None:
    spool = driven(tmp_path, BrokerReceiver(broker_with(b"a", b"b")), max_rows=1)
    spool.run_once()
    spool.run_once()
    first, second = spool.pending_segments()
    spool.settle([str(spool.segments / first)])
    assert (spool.segments / first).exists()
    spool.settle([f"file://{spool.segments}/{second}"])
    assert not (spool.segments / first).exists()
    assert (spool.segments / second).exists()
    spool.settle([second, 99])
    assert (spool.segments / second).exists()
    spool.settle([])
    assert list(spool.segments.iterdir()) == []
    spool.close()


def test_a_spool_that_was_used_long_keeps_a_small_index(tmp_path: Path) -> None:
    values = [b"%d" % n for n in range(200)]
    spool = driven(tmp_path, BrokerReceiver(broker_with(*values)), max_rows=5)
    while not spool.is_drained(0):
        spool.run_once(timeout=0)
        spool.settle(spool.pending_segments())
    spool.run_once(timeout=0)
    spool.settle([])
    spool.close()
    with sqlite3.connect(tmp_path / "index.db") as connection:
        (count,) = connection.execute("SELECT count(*) FROM segments").fetchone()
    connection.close()
    assert count <= 2
    spool = Spool(tmp_path).open()
    assert spool._index.next_number() == 41
    spool.close()


@pytest.mark.fault
@pytest.mark.parametrize("point", POINTS)
def test_a_crash_at_any_commit_point_loses_and_doubles_nothing(tmp_path: Path, point: str) -> None:
    broker = broker_with(b"a", b"b", b"c", b"d")
    committed: dict[str, list[bytes]] = {}
    spool = driven(tmp_path, BrokerReceiver(broker), max_rows=2)

    def work(turns: int) -> None:
        for _ in range(turns):
            spool.run_once(timeout=0)
            for name in spool.pending_segments():
                rows = pq.read_table(spool.segments / name).column("value").to_pylist()
                assert committed.setdefault(name, rows) == rows
            spool.settle(spool.pending_segments())

    with fault_points.inject(point, "crash") as fault, pytest.raises(fault_points.InjectedCrash):
        work(5)
    assert fault.has_fired
    spool._failure = RuntimeError("dead")
    spool.close()
    spool = driven(tmp_path, BrokerReceiver(broker), max_rows=2)
    work(8)
    assert sorted(value for rows in committed.values() for value in rows) == [b"a", b"b", b"c", b"d"]
    assert not broker.ready and not broker.unacknowledged
    spool.close()


@pytest.mark.fault
@pytest.mark.parametrize("point", POINTS[:3])
def test_positions_move_with_the_messages_before_them(tmp_path: Path, point: str) -> None:
    values = [b"%d" % n for n in range(6)]
    spool = driven(tmp_path, Log(values, {}), max_rows=2)
    with fault_points.inject(point, "crash", nth=2), pytest.raises(fault_points.InjectedCrash):
        for _ in range(3):
            spool.run_once(timeout=0)
    spool._failure = RuntimeError("dead")
    spool.close()
    spool = Spool(tmp_path).open()
    assert spool.progress() == {"log": "2" if point == "spool.written" else "4"}
    spool.follow(Log(values, spool.progress()), thread=False, linger=0)
    spool.run_once(timeout=0)
    assert values_in(spool) == values
    spool.close()


def test_a_message_that_comes_again_is_acknowledged_with_its_first_copy(tmp_path: Path) -> None:
    broker = broker_with(b"a", b"b")
    spool = driven(tmp_path, BrokerReceiver(broker))
    spool.run_once()
    broker.disconnect()
    spool.run_once()
    assert values_in(spool) == [b"a", b"b"]
    spool.settle(spool.pending_segments())
    spool.run_once()
    assert not broker.unacknowledged and not broker.ready
    spool.close()


def test_a_message_that_comes_again_after_it_was_settled_is_acknowledged_at_once(tmp_path: Path) -> None:
    broker = broker_with(b"a")
    spool = driven(tmp_path, BrokerReceiver(broker))
    spool.run_once()
    spool.settle(spool.pending_segments())
    spool._failure = RuntimeError("dead")  # before it was acknowledged
    spool.close()
    spool = driven(tmp_path, BrokerReceiver(broker))
    spool.run_once()
    spool.run_once()
    assert spool.pending_segments() == []
    assert not broker.unacknowledged and not broker.ready
    spool.close()


def test_a_new_message_that_equals_an_unsettled_one_is_kept(tmp_path: Path) -> None:
    broker = broker_with(b"a", b"a")
    spool = driven(tmp_path, BrokerReceiver(broker))
    spool.run_once()
    broker.disconnect()
    broker.publish(b"a")
    spool.run_once()
    assert values_in(spool) == [b"a", b"a", b"a"]
    spool.close()


def test_a_rejected_message_is_refused_at_its_source(tmp_path: Path) -> None:
    broker = broker_with(b"good", b"bad")
    spool = driven(tmp_path, BrokerReceiver(broker))
    spool.run_once()
    (name,) = spool.pending_segments()
    spool.settle([name], rejected=[(name, 1)])
    spool.run_once()
    assert [message.value for message in broker.refused] == [b"bad"]
    assert not broker.unacknowledged
    spool.close()


def test_settled_messages_are_forgotten_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker()
    broker.publish(b"a", "id-1")
    spool = driven(tmp_path, BrokerReceiver(broker))
    spool.run_once()
    spool.settle(spool.pending_segments())
    spool.run_once()
    assert len(spool._known_messages.segments) == 1
    monkeypatch.setattr(known_messages, "FORGET_AFTER", 0.0)
    spool._kept_alive_at = 0
    spool.run_once()
    assert spool._known_messages.segments == {}
    spool.close()


def test_files_that_the_index_does_not_know_are_deleted_if_they_are_a_spools(tmp_path: Path) -> None:
    Spool(tmp_path).open().close()
    for name in (f".tmp-{7:020d}.parquet", f"{7:020d}.parquet", "notes.txt"):
        (tmp_path / "segments" / name).write_bytes(b"x")
    Spool(tmp_path).open().close()
    assert [path.name for path in (tmp_path / "segments").iterdir()] == ["notes.txt"]


def test_a_segment_that_vanished_is_reported_with_what_to_do(tmp_path: Path) -> None:
    spool = driven(tmp_path, BrokerReceiver(broker_with(b"a")))
    spool.run_once()
    (spool.segments / spool.pending_segments()[0]).unlink()
    spool.close()
    with pytest.raises(SourceFailed, match=r"has lost 0+1.parquet, with 1 messages") as failure:
        Spool(tmp_path).open()
    assert "delete" in str(failure.value.next_step)


def test_a_spool_is_open_once_at_a_time(tmp_path: Path) -> None:
    spool = Spool(tmp_path).open()
    with pytest.raises(PipelineLocked, match="in use by another process"):
        Spool(tmp_path).open()
    spool.close()
    Spool(tmp_path).open().close()


def test_an_index_that_is_no_database_is_reported(tmp_path: Path) -> None:
    (tmp_path / "index.db").write_bytes(b"this is no database" * 100)
    with pytest.raises(SourceFailed, match="cannot be opened"):
        Spool(tmp_path).open()


def test_a_folder_that_cannot_be_made_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Exception, match="cannot make the folder"):
        Spool(tmp_path / "file" / "spool").open()


def test_nothing_is_received_while_too_much_waits_and_leases_are_kept(tmp_path: Path) -> None:
    class Kept(BrokerReceiver):
        kept = 0

        def keep_alive(self) -> None:
            self.kept += 1

    broker = broker_with(*(b"%d" % n for n in range(10)))
    receiver = Kept(broker)
    spool = driven(tmp_path, receiver, max_rows=2, max_pending_rows=4)
    for _ in range(5):
        spool._kept_alive_at = 0
        spool.run_once(timeout=0)
    assert spool.pending_rows() == 4
    assert receiver.kept >= 3
    assert not spool.is_drained(0)
    spool.settle(spool.pending_segments())
    spool.run_once(timeout=0)
    assert spool.pending_rows() == 2
    spool.close()


def test_segments_are_closed_by_bytes(tmp_path: Path) -> None:
    broker = broker_with(*(b"x" * 1000 for _ in range(30)))
    spool = driven(tmp_path, BrokerReceiver(broker, prefetch=100), max_bytes=10_000, linger=60)
    for _ in range(60):
        spool.run_once(timeout=0)
    rows = [pq.read_metadata(spool.segments / name).num_rows for name in spool.pending_segments()]
    assert len(rows) >= 2
    assert max(rows) <= 12
    spool.close()


def test_a_thread_receives_settles_and_drains(tmp_path: Path) -> None:
    broker = broker_with(*(b"%d" % n for n in range(100)))
    receiver = BrokerReceiver(broker)
    with Spool(tmp_path) as spool:
        spool.follow(receiver, max_rows=7, linger=0.01)
        seen: list[bytes] = []

        def work() -> bool:
            names = spool.pending_segments()
            for name in names:
                seen.extend(pq.read_table(spool.segments / name).column("value").to_pylist())
            spool.settle(names)
            return spool.is_drained(0.1) and spool.pending_rows() == 0

        until(work)
        until(lambda: not broker.unacknowledged)
    assert sorted(seen) == sorted(b"%d" % n for n in range(100))
    assert receiver.closed


def test_a_source_that_cannot_tell_is_drained_when_nothing_comes(tmp_path: Path) -> None:
    class Silent(BrokerReceiver):
        def is_drained(self) -> bool | None:
            return None

    spool = driven(tmp_path, Silent(Broker()))
    spool.run_once(timeout=0)
    assert not spool.is_drained(60)
    assert spool.is_drained(0)
    spool.close()


def test_lag_has_the_unit_of_its_source(tmp_path: Path) -> None:
    class Timed(BrokerReceiver):
        lag_unit = "milliseconds"

        def lag(self) -> Mapping[str, int]:
            return {"s/0": 1200}

    spool = driven(tmp_path, Timed(Broker()))
    spool.run_once(timeout=0)
    assert (spool.lag(), spool.lag_unit) == ({"s/0": 1200}, "milliseconds")
    spool.close()


@pytest.mark.parametrize("raised", [CannotConnect("the broker is away"), ValueError("odd")])
def test_what_ends_the_receiving_is_raised_where_the_stream_looks(tmp_path: Path, raised: Exception) -> None:
    class Broken(BrokerReceiver):
        def poll(self, max_messages: int, timeout: float) -> Sequence[Message]:
            raise raised

    with Spool(tmp_path) as spool:
        spool.follow(Broken(Broker()))
        until(lambda: spool.failure is not None)
        with pytest.raises((CannotConnect, SourceFailed), match=r"the broker is away|ValueError: odd"):
            spool.raise_failure()
        with pytest.raises((CannotConnect, SourceFailed)):
            spool.is_drained(0)


def test_what_a_message_consists_of_makes_its_digest(tmp_path: Path) -> None:
    different = [
        Message(b""),
        Message(None),
        Message(b"", b""),
        Message(None, b""),
        Message(b"a", b"b"),
        Message(b"ab"),
        Message(b"", topic="a"),
        Message(b"", partition="a"),
        Message(b"", position="a"),
        Message(b"", headers="a"),
        Message(b"", timestamp=dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)),
    ]
    assert len({digest_of(message) for message in different}) == len(different)
    assert digest_of(Message(b"a", receipt=1)) == digest_of(Message(b"a", receipt=2, redelivered=True))


def test_messages_of_two_connections_do_not_share_a_segment(tmp_path: Path) -> None:
    broker = broker_with(b"a")
    spool = driven(tmp_path, BrokerReceiver(broker), linger=60)
    spool.run_once(timeout=0)
    broker.disconnect()
    broker.publish(b"b")
    spool.run_once(timeout=0)
    assert values_in(spool) == [b"a"]
    spool._segment_writer._linger = 0
    spool.run_once(timeout=0)
    spool.settle(spool.pending_segments())
    spool.run_once(timeout=0)
    assert not broker.unacknowledged and not broker.ready
    spool.close()


class Counting(BrokerReceiver):
    """A queue that reports how many messages are ready."""

    def lag(self) -> Mapping[str, int]:
        return {"q": len(self.broker.ready)}


def test_lag_counts_what_waits_at_the_source_and_what_lies_in_the_spool(tmp_path: Path) -> None:
    broker = broker_with(*(b"%d" % n for n in range(10)))
    spool = driven(tmp_path, Counting(broker), max_rows=4)
    seen = set()
    while spool.pending_rows() < 10:
        spool.run_once(timeout=0)
        seen.add(spool.lag()["q"])
    assert seen == {10}  # wherever they are, none is in a target
    spool.settle(spool.pending_segments())
    assert spool.lag() == {"q": 0}
    spool.close()


def test_lag_that_the_source_does_not_report_is_unknown_although_the_spool_has_messages(
    tmp_path: Path,
) -> None:
    class Silent(BrokerReceiver):
        def lag(self) -> Mapping[str, int]:
            return {}

    spool = driven(tmp_path, Silent(broker_with(b"1", b"2")))
    while not spool.pending_rows():
        spool.run_once(timeout=0)
    assert spool.lag() == {}
    spool.close()


def test_lag_in_time_adds_how_long_the_oldest_message_waits_in_the_spool(tmp_path: Path) -> None:
    class Timed(BrokerReceiver):
        lag_unit = "milliseconds"

        def lag(self) -> Mapping[str, int]:
            return {"s/0": 1200}

    spool = driven(tmp_path, Timed(broker_with(b"1")), linger=0)
    while not spool.pending_segments():
        spool.run_once(timeout=0)
    segment = spool.segments / spool.pending_segments()[0]
    long_ago = time.time() - 60
    os.utime(segment, (long_ago, long_ago))
    assert spool.lag()["s/0"] >= 61_200
    spool.settle(spool.pending_segments())
    assert spool.lag() == {"s/0": 1200}
    spool.close()
