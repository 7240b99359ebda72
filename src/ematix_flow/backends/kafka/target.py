"""Topics as message targets."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from confluent_kafka.admin import ConfigResource, ResourceType

from ematix_flow.backends.kafka.cluster import REQUEST_SECONDS, KafkaCluster
from ematix_flow.backends.kafka.failures import create_command
from ematix_flow.backends.kafka.sender import KafkaSender
from ematix_flow.backends.kafka.transactions import recover_marker
from ematix_flow.backends.messages.base import MessageTarget
from ematix_flow.errors import FlowError, TargetMissing, did_you_mean

_log = logging.getLogger(__name__)


class KafkaTarget(MessageTarget):
    """Readers of committed messages see a batch exactly once when its sender has a token."""

    transactions = True

    def __init__(self, cluster: KafkaCluster) -> None:
        self._cluster = cluster

    def check_destination(self, destination: str) -> None:
        topics = self._cluster.topics()
        if destination in topics:
            return
        hint = did_you_mean(destination, [name for name in topics if not name.startswith("__")])
        raise TargetMissing(
            f"there is no topic {destination!r} in the Kafka cluster at "
            f"{self._cluster.connection.bootstrap_servers}.{hint}",
            state="nothing was sent",
            next_step=create_command(self._cluster.connection, destination),
        )

    def sender(self, destination: str, options: Mapping[str, str]) -> KafkaSender:
        partitions = self._cluster.topics().get(destination)
        return KafkaSender(
            self._cluster.connection,
            destination,
            dict(options),
            self._max_message_bytes(destination),
            len(partitions) if partitions else None,
        )

    def _max_message_bytes(self, destination: str) -> int | None:
        """The maximum size of a message in the topic; None if this user may not read it."""
        topic = ConfigResource(ResourceType.TOPIC, destination)
        try:
            answer = self._cluster.admin.describe_configs([topic], request_timeout=REQUEST_SECONDS)[topic]
            found = self._cluster.wait_for(answer, f"describe topic {destination!r}")
        except FlowError as error:
            _log.debug("the message limit of topic %s is unknown: %s", destination, error.what)
            return None
        largest = found.get("max.message.bytes")  # Kafka-compatible brokers may leave it out
        return int(largest.value) if largest is not None and largest.value else None

    def last_token(
        self, pipeline: str, target: str, *, replays: bool = False
    ) -> tuple[str, str | None] | None:
        found = recover_marker(self._cluster, pipeline, target, replays=replays)
        return (found.batch_key, found.position) if found else None
