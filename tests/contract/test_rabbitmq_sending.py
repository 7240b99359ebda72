"""Sending to queues and exchanges of the real broker: messages are confirmed and routed, or refused."""

from __future__ import annotations

import json
import pickle
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest
from pika import frame, spec

from ematix_flow.backends.messages.base import BatchToken, outgoing_schema
from ematix_flow.backends.rabbitmq.backend import RabbitMQStreamBackend
from ematix_flow.backends.rabbitmq.sender import RabbitMQSender
from ematix_flow.errors import CannotConnect, ConfigError, RowRejected, TargetFailed
from ematix_flow.spec.connections.brokers import RabbitMQConnection
from tests.contract.rabbitmq_setup import backend, outgoing, polled, receiving
from tests.services.rabbitmq import RabbitMQServer
from tests.services.shared import private_server

rabbitmq = private_server("rabbitmq")  # tests here stop it


def sender(server: RabbitMQServer, place: str, **options: str) -> RabbitMQSender:
    target = backend(server).message_target()
    return pickle.loads(pickle.dumps(target.sender(place, options)))


@contextmanager
def broker_without_channels() -> Iterator[str]:
    """Shakes hands as a broker does, and answers nothing after that."""
    listening = socket.create_server(("127.0.0.1", 0))
    over = threading.Event()

    def method(method: Any) -> bytes:
        return bytes(frame.Method(0, method).marshal())

    def serve() -> None:
        talking, _ = listening.accept()
        with talking:
            talking.recv(8)
            talking.sendall(method(spec.Connection.Start(server_properties={}, mechanisms="PLAIN")))
            talking.recv(65536)
            talking.sendall(method(spec.Connection.Tune(0, 131072, 0)))
            talking.recv(65536)
            talking.sendall(method(spec.Connection.OpenOk()))
            over.wait(60)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"amqp://guest:guest@127.0.0.1:{listening.getsockname()[1]}/"
    finally:
        over.set()
        thread.join()
        listening.close()


def test_rows_arrive_as_persistent_messages_with_ids(rabbitmq: RabbitMQServer, rabbitmq_queue: str) -> None:
    rows = [
        {"value": b"1", "key": b"k", "headers": '{"a": "b", "n": 3}'},
        {"value": b"2"},
        {"value": None},
    ]
    token = BatchToken("p", "t", "batch-1")
    sending = sender(rabbitmq, rabbitmq_queue, content_type="text/plain")
    assert sending.send(outgoing(rows), token) == 3
    rabbitmq.restart(kill=False)  # what is persistent comes back; killed, 3.10 may forget a new queue too
    with receiving(rabbitmq, rabbitmq_queue) as receiver:
        first, second, third = polled(receiver, 3)
    assert [m.value for m in (first, second, third)] == [b"1", b"2", b""]
    assert first.key == rabbitmq_queue.encode()
    assert json.loads(first.headers or "") == {
        "a": "b",
        "n": "3",
        "message_key": "k",
        "amqp_content_type": "text/plain",
    }
    assert len({first.position, second.position, third.position}) == 3


def test_a_batch_sent_again_has_the_same_ids(rabbitmq: RabbitMQServer, rabbitmq_queue: str) -> None:
    rows = [{"value": b"1"}, {"value": b"1"}]
    for batch in ("b", "b", "c"):
        sender(rabbitmq, rabbitmq_queue).send(outgoing(rows), BatchToken("p", "t", batch))
    sender(rabbitmq, rabbitmq_queue).send(outgoing(rows))
    with receiving(rabbitmq, rabbitmq_queue) as receiver:
        ids = [message.position for message in polled(receiver, 8)]
    assert ids[:2] == ids[2:4]
    assert len(set(ids)) == 6


def test_an_exchange_routes_by_the_key_of_the_row_or_by_the_one_that_is_named(
    rabbitmq: RabbitMQServer, rabbitmq_queue: str
) -> None:
    exchange = f"{rabbitmq_queue}.x"
    with rabbitmq.channel() as channel:
        channel.exchange_declare(exchange, "topic")
        channel.queue_bind(rabbitmq_queue, exchange, "orders.#")
    backend(rabbitmq).message_target().check_destination(f"exchange:{exchange}/orders.all")
    rows = [{"value": b"1", "key": b"orders.eu"}, {"value": b"2"}]
    assert sender(rabbitmq, f"exchange:{exchange}/orders.all").send(outgoing(rows)) == 2
    with receiving(rabbitmq, rabbitmq_queue) as receiver:
        assert [m.key for m in polled(receiver, 2)] == [b"orders.eu", b"orders.all"]
    with pytest.raises(TargetFailed, match=r"no queue accepts 1 of 2 messages .* NO_ROUTE, routing key 'x'"):
        sender(rabbitmq, f"exchange:{exchange}").send(
            outgoing([{"value": b"1", "key": b"x"}, {"value": b"2", "key": b"orders.us"}])
        )
    with rabbitmq.channel() as channel:
        channel.exchange_delete(exchange)


def test_a_queue_that_is_not_there_is_reported(rabbitmq: RabbitMQServer) -> None:
    target = backend(rabbitmq).message_target()
    with pytest.raises(TargetFailed, match="there is no queue 'nothing'") as refused:
        target.check_destination("nothing")
    assert "declare queue name=nothing" in str(refused.value.next_step)
    with pytest.raises(TargetFailed, match="no queue accepts 1 of 1 messages to 'nothing'"):
        target.sender("nothing", {}).send(outgoing([{"value": b"1"}]))


def test_an_exchange_that_is_not_there_is_reported(rabbitmq: RabbitMQServer) -> None:
    target = backend(rabbitmq).message_target()
    with pytest.raises(TargetFailed, match="no exchange 'nothing'"):
        target.check_destination("exchange:nothing/key")
    with pytest.raises(TargetFailed, match="nothing"):
        target.sender("exchange:nothing", {}).send(outgoing([{"value": b"1"}]))
    with pytest.raises(TargetFailed, match="names no exchange"):
        target.sender("exchange:", {})


def test_an_option_that_is_not_known_is_refused(rabbitmq: RabbitMQServer) -> None:
    with pytest.raises(ConfigError, match="Did you mean 'content_type'"):
        backend(rabbitmq).message_target().sender("queue", {"contenttype": "x"})


def test_a_full_queue_that_refuses_is_reported(rabbitmq: RabbitMQServer) -> None:
    queue = rabbitmq.create_queue("full", {"x-max-length": 5, "x-overflow": "reject-publish"})
    with pytest.raises(TargetFailed, match=r"refused \d+ of 50 messages .* full"):
        sender(rabbitmq, queue).send(outgoing([{"value": b"%d" % n} for n in range(50)]))
    rabbitmq.delete_queue(queue)


def test_what_the_rows_raise_is_raised(rabbitmq: RabbitMQServer, rabbitmq_queue: str) -> None:
    def rows() -> Any:
        yield from outgoing([{"value": b"1"}])
        raise RowRejected("row 2 cannot be written")

    with pytest.raises(RowRejected, match="row 2"):
        sender(rabbitmq, rabbitmq_queue).send(rows())


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"headers": "no"}, "headers that are not JSON"),
        ({"headers": "[1]"}, "headers that are not a JSON object"),
        ({"headers": json.dumps({"n" * 256: "v"})}, "longer than 255 bytes"),
        ({"key": "ü".encode() * 128}, "more than 255 bytes"),
    ],
)
def test_a_row_that_amqp_cannot_hold_is_named(
    rabbitmq: RabbitMQServer, rabbitmq_queue: str, row: dict[str, Any], words: str
) -> None:
    rows = [{"value": b"0"}, {"value": b"1", **row}]
    with pytest.raises(RowRejected, match=f"message 1 .*{words}"):
        sender(rabbitmq, "exchange:amq.fanout").send(outgoing(rows))


def test_a_broker_that_opens_no_channel_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ematix_flow.backends.rabbitmq.sender._STALLED_SECONDS", 1.0)
    with broker_without_channels() as url:
        connection = RabbitMQConnection(name="broker", amqp_url=url)
        sending = RabbitMQStreamBackend(connection).message_target().sender("queue", {})
        with pytest.raises((CannotConnect, TargetFailed), match="does not answer in time"):
            sending.send(outgoing([{"value": b"1"}]))


def test_nothing_at_all_is_sent_in_peace(rabbitmq: RabbitMQServer, rabbitmq_queue: str) -> None:
    assert sender(rabbitmq, rabbitmq_queue).send([]) == 0
    assert sender(rabbitmq, rabbitmq_queue).send(outgoing([])) == 0


@pytest.mark.parametrize("batches", [2, pytest.param(10, marks=pytest.mark.long)])
def test_many_rows_are_all_confirmed(rabbitmq: RabbitMQServer, rabbitmq_queue: str, batches: int) -> None:
    batch = pa.RecordBatch.from_pylist(
        [{"value": b"%d" % n} for n in range(10_000)], schema=outgoing_schema()
    )
    assert sender(rabbitmq, rabbitmq_queue).send([batch] * batches) == batches * 10_000
    assert rabbitmq.count(rabbitmq_queue) == batches * 10_000


def test_large_messages_pass(rabbitmq: RabbitMQServer, rabbitmq_queue: str) -> None:
    rows = [{"value": bytes([n]) * 3_000_000} for n in range(20)]
    assert sender(rabbitmq, rabbitmq_queue).send(outgoing(rows)) == 20
    with receiving(rabbitmq, rabbitmq_queue) as receiver:
        assert [len(m.value or b"") for m in polled(receiver, 20)] == [3_000_000] * 20


@pytest.mark.fault
def test_a_broker_that_dies_while_it_is_sent_to_fails_the_batch(
    rabbitmq: RabbitMQServer, rabbitmq_queue: str
) -> None:
    sent = threading.Event()

    def rows() -> Any:
        for _ in range(50):
            yield from outgoing([{"value": b"x" * 100}] * 1000)
            sent.set()

    killer = threading.Thread(target=lambda: (sent.wait(30), rabbitmq.stop()))
    killer.start()
    with pytest.raises((TargetFailed, CannotConnect)) as failure:
        sender(rabbitmq, rabbitmq_queue).send(rows())
    killer.join()
    assert "sent again with the batch" in str(failure.value.state)
    with pytest.raises(CannotConnect, match="nothing listens"):
        sender(rabbitmq, rabbitmq_queue).send(outgoing([{"value": b"1"}]))
    rabbitmq.start()
