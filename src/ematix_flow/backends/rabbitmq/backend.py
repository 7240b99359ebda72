"""The backend of a RabbitMQ connection: one server."""

from __future__ import annotations

from ematix_flow.backends.base import Backend
from ematix_flow.backends.capabilities import Capabilities
from ematix_flow.backends.rabbitmq.address import address_of
from ematix_flow.backends.rabbitmq.source import RabbitMQSource
from ematix_flow.backends.rabbitmq.target import RabbitMQTarget
from ematix_flow.errors import ConfigError
from ematix_flow.spec.connections import Connection
from ematix_flow.spec.connections.brokers import RabbitMQConnection


class RabbitMQStreamBackend(Backend):
    """A source and target of streams; batch pipelines cannot use it."""

    kind = "rabbitmq"
    capabilities = Capabilities()

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        if not isinstance(connection, RabbitMQConnection):
            raise ConfigError(f"connection {connection.name!r} is {connection.kind}, not rabbitmq")
        self.address = address_of(connection)

    def check(self) -> str:
        server = self.address.server_properties()
        return f"{server.get('product', 'AMQP server')} {server.get('version', '')} at {self.address.label}"

    def identity(self) -> str:
        """The cluster and the virtual host, the same for all nodes of the cluster."""
        address = self.address
        server = self.address.server_properties().get("cluster_name") or f"{address.host}:{address.port}"
        return f"{self.kind}:{server}/{address.vhost}"

    def stream_source(self) -> RabbitMQSource:
        return RabbitMQSource(self.address)

    def message_target(self) -> RabbitMQTarget:
        return RabbitMQTarget(self.address)
