"""Following a queue of the real broker, with and without the spool between."""

from __future__ import annotations

import datetime as dt
import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pika
import pytest

from ematix_flow.backends.messages.base import ReadRequest
from ematix_flow.backends.spool.spool import Spool
from ematix_flow.errors import CannotConnect, SourceFailed
from tests.contract.rabbitmq_setup import Target, backend, polled, receiving, until
from tests.services.rabbitmq import RabbitMQServer
from tests.services.shared import private_server

rabbitmq = private_server("rabbitmq")  # tests here stop it

REPOSITORY = Path(__file__).resolve().parents[2]
QUEUES = {"classic": {}, "quorum": {"x-queue-type": "quorum"}}


@pytest.fixture(params=["classic", pytest.param("quorum", marks=pytest.mark.long)])
def any_queue(rabbitmq: RabbitMQServer, request: pytest.FixtureRequest) -> Any:
    rabbitmq.start()
    name = rabbitmq.create_queue(request.node.name, QUEUES[request.param])
    yield name
    rabbitmq.delete_queue(name)


def test_a_message_has_all_that_the_delivery_had(rabbitmq: RabbitMQServer, rabbitmq_queue: str) -> None:
    headers = {"kind": "ü", "count": 3, "flag": True, "nothing": None, "list": [1, "a"], "raw": b"\xff"}
    with rabbitmq.channel() as channel:
        channel.exchange_declare(f"{rabbitmq_queue}.x", "topic", auto_delete=True)
        channel.queue_bind(rabbitmq_queue, f"{rabbitmq_queue}.x", "orders.#")
        shown = pika.BasicProperties(
            message_id="m-1", timestamp=1_700_000_000, headers=headers, content_type="application/json"
        )
        channel.basic_publish(f"{rabbitmq_queue}.x", "orders.new", b'{"a": 1}', shown)
        channel.basic_publish("", rabbitmq_queue, b"", pika.BasicProperties(timestamp=2**62))
        with receiving(rabbitmq, rabbitmq_queue) as receiver:
            first, second = polled(receiver, 2)
    assert first.value == b'{"a": 1}'
    assert (first.key, first.topic) == (b"orders.new", f"{rabbitmq_queue}.x")
    assert (first.position, first.partition) == ("m-1", None)
    assert first.timestamp == dt.datetime(2023, 11, 14, 22, 13, 20, tzinfo=dt.timezone.utc)
    assert json.loads(first.headers or "") == {
        "kind": "ü",
        "count": "3",
        "flag": "true",
        "nothing": None,
        "list": '[1,"a"]',
        "raw": "\\xff",
        "amqp_content_type": "application/json",
    }
    assert (second.value, second.key, second.topic) == (b"", rabbitmq_queue.encode(), rabbitmq_queue)
    assert (second.position, second.timestamp, second.headers) == (None, None, None)


def test_no_more_than_the_prefetch_is_here_unacknowledged(rabbitmq: RabbitMQServer, any_queue: str) -> None:
    rabbitmq.publish(any_queue, [b"%d" % n for n in range(50)])
    with receiving(rabbitmq, any_queue, prefetch="20") as receiver:
        first = polled(receiver, 20)
        assert list(receiver.poll(50, 0.3)) == []
        assert receiver.is_drained() is False
        assert receiver.acknowledge([message.receipt for message in first[:5]]) is True
        assert [message.value for message in polled(receiver, 5)] == [b"%d" % n for n in range(20, 25)]


def test_large_messages_wait_with_the_broker_and_not_here(
    rabbitmq: RabbitMQServer, any_queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ematix_flow.backends.rabbitmq.receiver.BUFFERED_BYTES", 3_000_000)
    rabbitmq.publish(any_queue, [bytes([n]) * 1_000_000 for n in range(60)])
    with receiving(rabbitmq, any_queue) as receiver:
        until(lambda: receiver.keep_alive() or receiver._is_full())
        receiver.acknowledge([])
        assert receiver.lag() == {}
        found = list(receiver.poll(1000, 5))
        assert 3 <= len(found) <= 8
        found += polled(receiver, 60 - len(found))
        assert [message.value[0] for message in found if message.value] == list(range(60))
        assert receiver.acknowledge([message.receipt for message in found]) is True
        until(receiver.is_drained)


def test_what_is_not_acknowledged_comes_again_marked_and_in_order(
    rabbitmq: RabbitMQServer, any_queue: str
) -> None:
    rabbitmq.publish(any_queue, [b"%d" % n for n in range(10)])
    with receiving(rabbitmq, any_queue) as receiver:
        messages = polled(receiver, 10)
        assert not any(message.redelivered for message in messages)
        done = [message.receipt for message in messages if message.value in (b"0", b"1", b"4", b"7")]
        assert receiver.acknowledge(done) is True
        assert receiver.acknowledge(done) is True  # a second time is no error
    with receiving(rabbitmq, any_queue) as receiver:
        again = polled(receiver, 6)
        assert [message.value for message in again] == [b"2", b"3", b"5", b"6", b"8", b"9"]
        assert all(message.redelivered for message in again)
        assert [m.headers for m in again] == [m.headers for m in messages[:6]]  # no count of the broker's
        assert receiver.acknowledge([message.receipt for message in again]) is True
        until(receiver.is_drained)
    assert rabbitmq.count(any_queue) == 0


def test_receipts_of_a_connection_that_is_gone_are_ignored(
    rabbitmq: RabbitMQServer, rabbitmq_queue: str
) -> None:
    rabbitmq.publish(rabbitmq_queue, [b"a", b"b"])
    with receiving(rabbitmq, rabbitmq_queue) as receiver:
        old = [message.receipt for message in polled(receiver, 2)]
        before = receiver.generation
        receiver._connection.close()
        again = polled(receiver, 2)
        assert receiver.generation != before
        assert receiver.acknowledge(old) is True
        assert all(message.redelivered for message in again)
        assert receiver.acknowledge([again[0].receipt]) is True
    assert rabbitmq.count(rabbitmq_queue) == 1


def test_it_is_drained_when_the_queue_is_empty_and_not_before(
    rabbitmq: RabbitMQServer, any_queue: str
) -> None:
    rabbitmq.publish(any_queue, [b"%d" % n for n in range(100)])
    with receiving(rabbitmq, any_queue) as receiver:
        assert receiver.is_drained() is False
        assert receiver.lag()[any_queue] <= 100
        polled(receiver, 100)
        until(receiver.is_drained)
        rabbitmq.publish(any_queue, [b"more"])
        until(lambda: receiver.is_drained() is False)


def test_a_queue_deleted_while_it_is_read_is_reported(rabbitmq: RabbitMQServer, any_queue: str) -> None:
    with receiving(rabbitmq, any_queue) as receiver:
        receiver.poll(1, 0)
        rabbitmq.delete_queue(any_queue)
        with pytest.raises(SourceFailed, match=f"the queue '{any_queue}' was deleted while it was read"):
            until(lambda: receiver.poll(1, 0.1) and False, 20)


def test_rejected_messages_go_to_the_dead_letter_exchange_of_the_queue(rabbitmq: RabbitMQServer) -> None:
    dead = rabbitmq.create_queue("dead")
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
    queue = rabbitmq.create_queue("living", arguments)
    rabbitmq.publish(queue, [b"good", b"poison", b"fine"])
    with receiving(rabbitmq, queue) as receiver:
        messages = polled(receiver, 3)
        assert receiver.reject([messages[1].receipt]) is True
        assert receiver.acknowledge([messages[0].receipt, messages[2].receipt]) is True
    assert rabbitmq.count(queue) == 0
    with receiving(rabbitmq, dead) as receiver:
        (letter,) = polled(receiver, 1)
        assert letter.value == b"poison"
        assert json.loads(letter.headers or "")["x-first-death-reason"] == "rejected"
        assert receiver.acknowledge([letter.receipt]) is True
    rabbitmq.delete_queue(queue)
    rabbitmq.delete_queue(dead)


def test_a_spool_acknowledges_what_is_settled_and_nothing_else(
    rabbitmq: RabbitMQServer, rabbitmq_queue: str, tmp_path: Path
) -> None:
    rabbitmq.publish(rabbitmq_queue, [b"%d" % n for n in range(30)])
    spool = Spool(tmp_path).open()
    spool.follow(backend(rabbitmq).stream_source().receiver(ReadRequest(rabbitmq_queue), {}), max_rows=10)
    until(lambda: spool.pending_rows() == 30 and spool.is_drained(1))
    spool.settle(spool.pending_segments()[:1])
    settled = 30 - spool.pending_rows()
    spool.close()
    assert 0 < settled < 30
    until(lambda: rabbitmq.count(rabbitmq_queue) == 30 - settled)


@pytest.mark.slow
@pytest.mark.parametrize("count", [20_000, pytest.param(100_000, marks=pytest.mark.long)])
def test_many_messages_arrive_once(
    rabbitmq: RabbitMQServer, rabbitmq_queue: str, tmp_path: Path, count: int
) -> None:
    rabbitmq.publish(rabbitmq_queue, [b"%d" % n for n in range(count)])
    target = Target()
    with Spool(tmp_path) as spool:
        spool.follow(backend(rabbitmq).stream_source().receiver(ReadRequest(rabbitmq_queue), {}))

        def done() -> bool:
            target.load(spool)
            return spool.is_drained(1) and spool.pending_rows() == 0

        until(done, 200)
    assert target.values == sorted(b"%d" % n for n in range(count))
    until(lambda: rabbitmq.count(rabbitmq_queue) == 0)


CONSUMER = """
    import sys, time
    from pathlib import Path
    from ematix_flow.backends.registry import open_backend
    from ematix_flow.backends.spool.spool import Spool
    from ematix_flow.backends.messages.base import ReadRequest
    from ematix_flow.spec.connections.brokers import RabbitMQConnection
    from tests.contract.rabbitmq_setup import Target
    import pyarrow.parquet as pq

    url, queue, folder, out = sys.argv[1:]
    source = open_backend(RabbitMQConnection(name="broker", amqp_url=url)).stream_source()
    spool = Spool(Path(folder)).open()
    request = ReadRequest(queue, options={"prefetch": "400"})
    spool.follow(source.receiver(request, {}), max_rows=50, linger=0.01)
    while not (spool.is_drained(1) and spool.pending_rows() == 0):
        for name in spool.pending_segments():
            kept = Path(out) / name
            rows = pq.read_table(spool.segments / name)
            aside = kept.with_suffix(".aside")
            pq.write_table(rows, aside)
            aside.rename(kept)
            spool.settle([name])
        print(spool.pending_rows(), flush=True)
    spool.close()
"""


@pytest.mark.fault
@pytest.mark.slow
def test_a_consumer_killed_at_any_moment_loses_and_doubles_nothing(
    rabbitmq: RabbitMQServer, any_queue: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    import pyarrow.parquet as pq

    count, ids = 3_000, "quorum" in request.node.name
    rabbitmq.publish(any_queue, [b"%d" % n for n in range(count)], ids=ids)
    (tmp_path / "out").mkdir()
    command = [sys.executable, "-c", textwrap.dedent(CONSUMER), rabbitmq.url(), any_queue]
    environment = {**os.environ, "PYTHONPATH": f"{REPOSITORY / 'src'}{os.pathsep}{REPOSITORY}"}
    points = ["written=kill:3", "indexed=kill:4", "settled=kill:3", "renamed=kill:5", "acknowledged=kill:2"]
    for fault in [*(f"spool.{point}" for point in points), ""]:
        done = subprocess.run(
            [*command, str(tmp_path / "spool"), str(tmp_path / "out")],
            env={**environment, "EMATIX_FLOW_FAULT": fault},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == (-signal.SIGKILL if fault else 0), done.stderr
    rows = [
        value for f in (tmp_path / "out").glob("*.parquet") for value in pq.read_table(f)["value"].to_pylist()
    ]
    assert sorted(rows) == sorted(b"%d" % n for n in range(count))
    until(lambda: rabbitmq.count(any_queue) == 0)


@pytest.mark.fault
@pytest.mark.slow
@pytest.mark.parametrize("kill", [True, False], ids=["killed", "restarted"])
def test_a_broker_that_restarts_loses_and_doubles_nothing(
    rabbitmq: RabbitMQServer, any_queue: str, tmp_path: Path, kill: bool
) -> None:
    if kill:  # RabbitMQ 3.10 answers INTERNAL_ERROR for a quorum queue that was declared just before
        rabbitmq.restart(kill=False)
    first, second = ([b"%d" % n for n in range(at, at + 500)] for at in (0, 500))
    rabbitmq.publish(any_queue, first, ids=True)
    target = Target()
    with Spool(tmp_path) as spool:
        spool.follow(
            backend(rabbitmq)
            .stream_source()
            .receiver(ReadRequest(any_queue, options={"prefetch": "300"}), {}),
            max_rows=50,
        )
        until(lambda: spool.pending_rows() >= 200)
        target.load(spool)
        rabbitmq.restart(kill=kill)

        def done() -> bool:
            target.load(spool)
            return spool.is_drained(1) and spool.pending_rows() == 0

        until(done, 120)
        rabbitmq.publish(any_queue, second, app_id="second", ids=True)
        until(lambda: not spool.is_drained(1))
        until(done, 120)
    assert target.values == sorted([*first, *second])
    until(lambda: rabbitmq.count(any_queue) == 0)


@pytest.mark.fault
def test_a_broker_that_stays_away_ends_the_receiving(
    rabbitmq: RabbitMQServer, rabbitmq_queue: str, tmp_path: Path
) -> None:
    rabbitmq.publish(rabbitmq_queue, [b"a"])
    with Spool(tmp_path) as spool:
        reading = ReadRequest(rabbitmq_queue, options={"reconnect_seconds": "1"})
        spool.follow(backend(rabbitmq).stream_source().receiver(reading, {}))
        until(lambda: spool.pending_rows() == 1)
        rabbitmq.stop()
        until(lambda: spool.failure is not None)
        with pytest.raises(CannotConnect, match=r"has been unreachable for .* seconds: nothing listens"):
            spool.raise_failure()
    rabbitmq.start()
    assert rabbitmq.count(rabbitmq_queue) == 1
