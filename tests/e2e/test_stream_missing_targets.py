"""A stream into a missing topic, queue, exchange or Kinesis stream: it ends at once, and reads nothing."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from ematix_flow import BigInt, ManagedTable
from ematix_flow.errors import FlowError, TargetMissing
from ematix_flow.spec.connections import KinesisConnection, PubSubConnection, RabbitMQConnection
from tests.services.kafka import KafkaServer
from tests.services.rabbitmq import RabbitMQServer
from tests.stream_runs import kafka_connection, load, produce, stream


class Numbered(ManagedTable):
    __tablename__ = "numbered"
    id: BigInt


def _broker(kind: str, request: pytest.FixtureRequest) -> tuple[Any, dict[str, str], Any]:
    """A connection, the options that name a missing destination, and the command that creates it."""
    server = request.getfixturevalue("rabbitmq" if kind == "exchange" else kind)
    server.start()
    name = f"nowhere-{uuid.uuid4().hex}"
    if kind == "kafka":
        return kafka_connection(server, "out"), {"target_topic": name}, lambda: server.create_topic(name=name)
    if kind == "rabbitmq":
        connection = RabbitMQConnection(name="out", amqp_url=server.url())
        return connection, {"target_queue": name}, lambda: _declare(server, name)
    if kind == "exchange":
        connection = RabbitMQConnection(name="out", amqp_url=server.url())
        return connection, {"target_queue": f"exchange:{name}/key"}, None
    if kind == "pubsub":
        project = PubSubConnection(name="out", **server.connection_fields())
        return project, {"target_topic": name}, None
    return KinesisConnection(name="out", **server.connection_fields(name)), {}, None


def _declare(server: RabbitMQServer, queue: str) -> None:
    with server.channel() as channel:
        channel.queue_declare(queue, durable=True)


@pytest.mark.parametrize(
    ("kind", "columns"),
    [
        ("kafka", None),  # found in the first messages
        ("rabbitmq", Numbered),
        *[pytest.param(kind, None, marks=pytest.mark.long) for kind in ("exchange", "pubsub", "kinesis")],
        pytest.param("kafka", Numbered, marks=pytest.mark.long),
        pytest.param("rabbitmq", None, marks=pytest.mark.long),
    ],
)
@pytest.mark.usefixtures("spark")
def test_a_target_that_was_never_there_ends_the_stream_at_once(
    kind: str, columns: Any, kafka: KafkaServer, kafka_topic: str, request: pytest.FixtureRequest
) -> None:
    connection, options, make = _broker(kind, request)
    produce(kafka, kafka_topic, [{"id": 1}, {"id": 2}])
    followed = stream(
        source=kafka_connection(kafka),
        source_query=kafka_topic,
        source_columns=columns,
        target=connection,
        **options,
    )
    running = followed.start(restart_on_error=True, initial_backoff_ms=1, max_backoff_ms=1, max_restarts=5)
    with pytest.raises(FlowError, match="nowhere") as failure:
        running.wait(120)
    assert isinstance(failure.value, TargetMissing) and failure.value.next_step
    assert (running.result().restarts, running.result().rows_read) == (0, 0)
    if make is not None:
        make()
        assert load(followed).total_rows == 2
