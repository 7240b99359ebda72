"""RabbitMQ used directly, as in a notebook."""

from __future__ import annotations

import pyarrow as pa
import pytest

from ematix_flow._core import RabbitMQBackend
from ematix_flow.errors import CannotConnect, SourceFailed
from tests.services.rabbitmq import RabbitMQServer

ROWS = [{"id": n, "name": f"n{n}"} for n in range(25)]


def test_batches_go_out_and_come_back(rabbitmq: RabbitMQServer, rabbitmq_queue: str) -> None:
    with RabbitMQBackend.open(rabbitmq.url(), batch_size=10) as backend:
        assert backend.ping().startswith("RabbitMQ 3.")
        assert backend.write_arrow_stream(rabbitmq_queue, pa.Table.from_pylist(ROWS)) == 25
        batches = list(backend.iter_arrow_stream(rabbitmq_queue, idle_timeout=3))
        assert [batch.num_rows for batch in batches] == [10, 10, 5]
        table = pa.Table.from_batches(batches).select(["id", "name"])
        assert table.to_pylist() == ROWS
        assert backend.pending_count() == 25
        backend.commit_offsets()
        assert backend.pending_count() == 0
    assert rabbitmq.count(rabbitmq_queue) == 0


def test_what_is_not_committed_comes_again(rabbitmq: RabbitMQServer, rabbitmq_queue: str) -> None:
    rabbitmq.publish(rabbitmq_queue, [b'{"id": 1}', b'{"id": 2}'])
    for _ in range(2):
        with RabbitMQBackend.open(rabbitmq.url()) as backend:
            batches = backend.read_arrow_stream(rabbitmq_queue, idle_timeout=3)
            assert [row["id"] for batch in batches for row in batch.to_pylist()] == [1, 2]


def test_refused_messages_go_to_the_dead_letter_exchange_or_back(rabbitmq: RabbitMQServer) -> None:
    dead = rabbitmq.create_queue("dead")
    queue = rabbitmq.create_queue("living", {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead})
    rabbitmq.publish(queue, [b'{"id": 1}', b'{"id": 2}'])
    with RabbitMQBackend.open(rabbitmq.url()) as backend:
        backend.read_arrow_stream(queue, idle_timeout=3)
        assert backend.nack_pending(requeue=True) == 2
        backend.read_arrow_stream(queue, idle_timeout=3)
        assert backend.nack_pending() == 2
    assert (rabbitmq.count(queue), rabbitmq.count(dead)) == (0, 2)
    rabbitmq.delete_queue(queue)
    rabbitmq.delete_queue(dead)


def test_a_wrong_password_and_a_missing_queue_are_reported(rabbitmq: RabbitMQServer) -> None:
    with (
        RabbitMQBackend.open(rabbitmq.url(password="wrong-wrong")) as backend,
        pytest.raises(CannotConnect, match="refuses the user"),
    ):
        backend.ping()
    with (
        RabbitMQBackend.open(rabbitmq.url()) as backend,
        pytest.raises(SourceFailed, match="there is no queue 'nothing'"),
    ):
        backend.read_arrow_stream("nothing")
