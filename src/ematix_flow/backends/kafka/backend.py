"""One Kafka cluster behind a connection."""

from __future__ import annotations

from ematix_flow.backends.base import Backend
from ematix_flow.backends.capabilities import Capabilities
from ematix_flow.backends.kafka.cluster import KafkaCluster
from ematix_flow.backends.kafka.target import KafkaTarget
from ematix_flow.backends.messages.base import StreamSource
from ematix_flow.errors import ConfigError
from ematix_flow.spec.connections import Connection
from ematix_flow.spec.connections.brokers import KafkaConnection


class KafkaStreamBackend(Backend):
    """Streams follow topics and send to them; batch pipelines cannot use Kafka."""

    kind = "kafka"
    capabilities = Capabilities()
    jar_groups: tuple[str, ...] = ("kafka",)

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        if not isinstance(connection, KafkaConnection):
            raise ConfigError(f"connection {connection.name!r} is {connection.kind}, not kafka")
        self.cluster = KafkaCluster(connection)
        if connection.msk_iam_region:
            self.jar_groups = ("kafka", "msk", "s3")  # s3 has the AWS SDK that both need

    def check(self) -> str:
        """Kafka does not report its version to clients; this shows the cluster's id and size."""
        metadata = self.cluster.metadata()
        count = len(metadata.brokers)
        brokers = "1 broker" if count == 1 else f"{count} brokers"
        id_shown = f"cluster {metadata.cluster_id}, " if metadata.cluster_id else ""
        return f"Kafka ({id_shown}{brokers}) at {self.cluster.connection.bootstrap_servers}"

    def identity(self) -> str:
        cluster_id = self.cluster.metadata().cluster_id
        servers = sorted(name.strip() for name in self.cluster.connection.bootstrap_servers.split(","))
        return f"{self.kind}:{cluster_id or ','.join(servers)}"

    def stream_source(self) -> StreamSource:
        from ematix_flow.backends.kafka.spark import KafkaSource

        return KafkaSource(self.cluster)

    def message_target(self) -> KafkaTarget:
        return KafkaTarget(self.cluster)
