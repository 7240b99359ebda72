"""The consumer group that shows how far a pipeline is, and where it resumes without any other position.

Pipelines of one connection share a group name, but must not resume from each other's offsets. So each commit
carries a mark of its pipeline. A pipeline that finds another pipeline's mark uses its own group,
``<group_id>.<pipeline>``. Offsets without a mark come from other tools, such as an operator's reset.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Iterable, Mapping

from confluent_kafka import Consumer, KafkaException, TopicPartition

from ematix_flow.backends.kafka.cluster import KafkaCluster, Partition
from ematix_flow.backends.kafka.settings import client_settings, group_of

_MARK = "ematix-flow:"
_NAME_BYTES = 200
_log = logging.getLogger(__name__)

CommittedOffsets = Mapping[Partition, tuple[int, str]]  # offset and metadata


class PipelineGroup:
    """The group of one pipeline; without a pipeline, the connection's group."""

    def __init__(self, cluster: KafkaCluster, pipeline: str = "") -> None:
        self.pipeline = pipeline
        self.name = self._shared_name = group_of(cluster.connection)
        self._own_name = bounded_name(f"{self._shared_name}.{pipeline}")
        self._mark = _MARK + bounded_name(pipeline) if pipeline else ""
        self._cluster = cluster
        self._is_group_chosen = not pipeline
        self._consumer: Consumer | None = None
        self._lock = threading.Lock()

    def offsets(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """The committed offsets of this pipeline, for the partitions that have one."""
        with self._lock:
            return self._offsets(list(partitions))

    def commit(self, wanted: Mapping[Partition, int]) -> None:
        """Commit that everything before these offsets is done; never moves back."""
        with self._lock:
            if not self._is_group_chosen:
                self._offsets(list(wanted))
            committed = self._committed_offsets(self.name, wanted)
            if self.name == self._shared_name and self._other_pipelines(
                committed
            ):  # another pipeline has begun
                self._switch_to_own_group(self._other_pipelines(committed))
                committed = self._committed_offsets(self.name, wanted)
            due = [
                TopicPartition(*each, offset, self._mark)
                for each, offset in wanted.items()
                if self._is_due(offset, *committed.get(each, (-1, "")))
            ]
            if not due:
                return
            for done in self._open_consumer().commit(offsets=due, asynchronous=False) or ():
                if done.error is not None:
                    raise KafkaException(done.error)

    def close(self) -> None:
        with self._lock:
            if self._consumer is not None:
                self._consumer.close()
                self._consumer = None

    def _offsets(self, partitions: list[Partition]) -> dict[Partition, int]:
        shared = self._committed_offsets(self._shared_name, partitions)
        if not self.pipeline:
            return {each: offset for each, (offset, _) in shared.items()}
        own, others = self._committed_offsets(self._own_name, partitions), self._other_pipelines(shared)
        if own or others:
            self._switch_to_own_group(others)
            shared = {each: commit for each, commit in shared.items() if commit[1] == self._mark}
        self._is_group_chosen = True
        return {each: offset for each, (offset, _) in {**shared, **own}.items()}

    def _is_due(self, offset: int, committed: int, mark: str) -> bool:
        return offset > committed or (offset == committed and mark != self._mark)

    def _committed_offsets(self, group: str, partitions: Iterable[Partition]) -> CommittedOffsets:
        return self._cluster.committed_offsets(group, partitions)

    def _other_pipelines(self, committed: CommittedOffsets) -> list[str]:
        """The other pipelines that have committed."""
        marks = {mark for _, mark in committed.values() if mark.startswith(_MARK) and mark != self._mark}
        return sorted(mark.removeprefix(_MARK) for mark in marks) if self.pipeline else []

    def _switch_to_own_group(self, others: list[str]) -> None:
        if self.name == self._own_name:
            return
        self.name = self._own_name
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None
        if others:
            _log.warning(
                "group %r has the progress of pipeline %s: pipeline %r keeps its own progress in group %r",
                self._shared_name,
                ", ".join(map(repr, others)),
                self.pipeline,
                self._own_name,
            )

    def _open_consumer(self) -> Consumer:
        """The consumer that commits; it never joins the group, and connects once."""
        if self._consumer is None:
            settings = {
                **client_settings(self._cluster.connection),
                "group.id": self.name,
                "enable.auto.commit": False,
            }
            self._consumer = Consumer(settings)
        return self._consumer


def bounded_name(name: str) -> str:
    """A name that is short enough for an id in Kafka; different names stay different."""
    if len(name.encode()) <= _NAME_BYTES:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:24]
    return f"{name[:100]}.{digest}"
