"""Kafka used directly: ``KafkaBackend.open("localhost:9092").iter_arrow_stream("events")``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ematix_flow.backends.brokers.direct_backend import CONNECTION_NAME, MessageBackend
from ematix_flow.backends.kafka.backend import KafkaStreamBackend as Cluster
from ematix_flow.backends.kafka.receiver import KafkaReceiver
from ematix_flow.backends.messages.base import Message, ReadRequest, Receiver, Sender
from ematix_flow.backends.payloads.connection_payloads import payload_of
from ematix_flow.errors import UsageError
from ematix_flow.spec.connections.brokers import KafkaConnection


class KafkaBackend(MessageBackend):
    """A cluster. Reads every partition from where ``group_id`` has committed; never joins the group."""

    numeric_positions = True

    def __init__(self, connection: KafkaConnection) -> None:
        super().__init__(payload_of(connection))
        self._kafka = Cluster(connection)

    @classmethod
    def open(cls, bootstrap_servers: str | Sequence[str], **fields: Any) -> KafkaBackend:
        """``fields`` are those of a Kafka connection, as ``group_id`` and ``sasl_plain_username``."""
        given = {"name": CONNECTION_NAME, "bootstrap_servers": bootstrap_servers, **fields}
        connection = KafkaConnection(**{name: value for name, value in given.items() if value is not None})
        if isinstance(connection.schema_registry, str) and connection.schema_registry:
            raise UsageError(
                "schema_registry is a name, which only pipelines can look up",
                next_step="give schema_registry_url, or a SchemaRegistryConnection",
            )
        return cls(connection)

    def ping(self) -> str:
        return self._kafka.check()

    def _open_receiver(self, place: str) -> Receiver:
        return KafkaReceiver(self._kafka.cluster, ReadRequest(place))

    def _sender(self, place: str) -> Sender:
        target = self._kafka.message_target()
        target.check_destination(place)
        return target.sender(place, {})

    def _receipts(self, messages: Sequence[Message]) -> Sequence[Any]:
        """The last receipt of each partition: it covers all earlier ones."""
        last = {(message.topic, message.partition): message.receipt for message in messages}
        return list(last.values())
