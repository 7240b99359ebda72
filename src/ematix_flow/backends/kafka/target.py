"""Topics as targets."""

from __future__ import annotations

from collections.abc import Mapping

from ematix_flow.backends.kafka.cluster import Cluster
from ematix_flow.backends.kafka.failures import create_command
from ematix_flow.backends.kafka.sender import KafkaSender
from ematix_flow.backends.kafka.transactions import settled_marker
from ematix_flow.backends.streams import MessageTarget
from ematix_flow.errors import TargetFailed, did_you_mean


class KafkaTarget(MessageTarget):
    """A batch arrives once for readers of committed messages when its sender is given a token."""

    transactions = True

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def check_place(self, place: str) -> None:
        there = self._cluster.topics()
        if place in there:
            return
        hint = did_you_mean(place, [name for name in there if not name.startswith("__")])
        raise TargetFailed(
            f"there is no topic {place!r} in the Kafka cluster at "
            f"{self._cluster.connection.bootstrap_servers}.{hint}",
            state="nothing was sent",
            next_step=create_command(self._cluster.connection, place),
        )

    def sender(self, place: str, options: Mapping[str, str]) -> KafkaSender:
        return KafkaSender(self._cluster.connection, place, dict(options))

    def last_token(self, pipeline: str, target: str) -> tuple[str, str | None] | None:
        found = settled_marker(self._cluster, pipeline, target)
        return (found.batch_key, found.position) if found else None
