"""Queries about a cluster: topics, offsets, groups. Every query is bounded in time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import contextmanager
from typing import Any, TypeVar

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, ClusterMetadata, OffsetSpec

from ematix_flow.backends.kafka.clients import open_client
from ematix_flow.backends.kafka.error_codes import MISSING, PATIENCE_SECONDS, is_transient, is_unreachable
from ematix_flow.backends.kafka.failures import ClientErrors, broker_refusal, cannot_connect
from ematix_flow.backends.kafka.settings import client_settings
from ematix_flow.errors import SourceFailed
from ematix_flow.spec.connections.brokers import KafkaConnection

REQUEST_SECONDS = 15.0
_SILENT_SECONDS = 4.0  # brokers that close every connection for so long will not accept one
Partition = tuple[str, int]
T = TypeVar("T")
K = TypeVar("K")
_UNSTABLE = (KafkaError.UNSTABLE_OFFSET_COMMIT,)
_MAX_CONSUMERS = 4
_RETRY_SECONDS = 0.2
_NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"  # all zeros
_ASK_SECONDS = 10.0  # then try a new client: an old one may keep waiting for a coordinator that is back


class TransactionStillOpen(SourceFailed):
    """A transaction that commits these offsets is still open."""


class KafkaCluster:
    """Opens a client with the first query. Owns threads of librdkafka: never pickled."""

    def __init__(
        self,
        connection: KafkaConnection,
        seconds: float = REQUEST_SECONDS,
        patience: float = PATIENCE_SECONDS,
    ) -> None:
        """``seconds`` to wait for an unreachable broker, ``patience`` for one that is up but not ready."""
        self.connection = connection
        self._seconds, self._patience = seconds, patience
        self._client_errors = ClientErrors()
        self._client: AdminClient | None = None
        self._lock = threading.Lock()
        self._group_consumers: dict[tuple[str, bool], Consumer] = {}
        self._consumers_lock = threading.Lock()

    @property
    def admin(self) -> AdminClient:
        with self._lock:
            if self._client is None:
                settings = {**client_settings(self.connection), "error_cb": self._client_errors}
                self._client = open_client(AdminClient, self.connection, settings)
            return self._client

    def close(self) -> None:
        """Close the clients; the next query opens new ones."""
        with self._consumers_lock:
            members, self._group_consumers = self._group_consumers, {}
            for member in members.values():
                member.close()
        with self._lock:
            self._client = None

    def metadata(self) -> ClusterMetadata:
        """Brokers and topics. CannotConnect, quickly, when every broker is known to be unreachable."""
        admin, deadline = self.admin, time.monotonic() + self._seconds
        client_errors = self._client_errors
        client_errors.clear()
        while True:
            left = deadline - time.monotonic()
            try:
                return admin.list_topics(timeout=max(0.1, min(left, 1.0)))
            except KafkaException as error:
                admin.poll(0)
                kafka_error = error.args[0]
                if not is_transient(kafka_error):
                    raise broker_refusal(self.connection, "list topics", kafka_error) from error
                silent = self._seconds - (deadline - time.monotonic()) >= _SILENT_SECONDS
                given_up = client_errors.all_brokers_down and (client_errors.reason is not None or silent)
                if given_up or time.monotonic() >= deadline:
                    raise cannot_connect(self.connection, client_errors, self._seconds) from error

    def topics(self) -> dict[str, list[int]]:
        """Every topic that this user sees, with its partitions."""
        topics = self.metadata().topics
        return {name: sorted(topic.partitions) for name, topic in topics.items()}

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """The id of each topic. A topic that is deleted and created again gets another id.

        Missing topics are left out, as are all topics on brokers before Kafka 2.8, which have no ids.
        """
        wanted = sorted(set(topics))
        if not wanted:
            return {}
        described = self.ask_all(
            lambda: self.admin.describe_topics(TopicCollection(wanted), request_timeout=self._seconds),
            "describe topics",
            left_out=MISSING,
        )
        ids = {topic: str(each.topic_id) for topic, each in described.items() if each.topic_id is not None}
        return {topic: id for topic, id in ids.items() if id != _NO_ID}

    def end_offsets(self, partitions: Iterable[Partition], *, committed: bool = True) -> dict[Partition, int]:
        """The offset after the last message, by default the last committed one."""
        return self._offsets(partitions, OffsetSpec.latest(), committed=committed)

    def start_offsets(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        return self._offsets(partitions, OffsetSpec.earliest(), committed=False)

    def offsets_at(self, partitions: Iterable[Partition], milliseconds: int) -> dict[Partition, int]:
        """The first offset at or after a time; -1 where there is none."""
        return self._offsets(partitions, OffsetSpec.for_timestamp(milliseconds), committed=False)

    def _offsets(
        self, partitions: Iterable[Partition], which: OffsetSpec, *, committed: bool
    ) -> dict[Partition, int]:
        specs = {TopicPartition(topic, number): which for topic, number in partitions}
        if not specs:
            return {}
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        names = ", ".join(sorted({each.topic for each in specs}))
        answers = self.ask_all(
            lambda: self.admin.list_offsets(specs, isolation_level=level, request_timeout=self._seconds),
            f"read offsets of {names}",
        )
        return {(each.topic, each.partition): int(answer.offset) for each, answer in answers.items()}

    def committed_offsets(
        self,
        group: str,
        partitions: Iterable[Partition],
        *,
        stable: bool = False,
        patience: float | None = None,
    ) -> dict[Partition, tuple[int, str]]:
        """The committed offset and metadata of a group, for each partition that has one.

        With ``stable`` this waits for a transaction that commits offsets of the group; TransactionStillOpen
        when it is open after ``patience`` seconds. It asks with a consumer, because the admin client of
        librdkafka 2.16 ends the process when a group's coordinator has moved.
        """
        requested = [TopicPartition(topic, number) for topic, number in partitions]
        if not requested:
            return {}
        doing = f"read the offsets of group {group!r}"
        deadline = time.monotonic() + (patience if patience is not None else self._seconds)
        while True:
            left = deadline - time.monotonic()
            try:
                with self._group_consumer(group, stable) as member:
                    found = member.committed(requested, timeout=max(min(left, _ASK_SECONDS), 0.1))
                break
            except KafkaException as error:
                kafka_error: KafkaError = error.args[0]
                if is_transient(kafka_error) and time.monotonic() < deadline:
                    time.sleep(_RETRY_SECONDS)
                    continue
                if (
                    stable
                    and kafka_error.code() in (*_UNSTABLE, KafkaError._TIMED_OUT)
                    and self._is_reachable()
                ):
                    raise TransactionStillOpen(
                        f"cannot {doing}: a transaction is open, or the group's coordinator does not answer"
                    ) from error
                raise self._source_failure(doing, kafka_error) from error
        for each in found:
            if each.error is not None:
                raise self._source_failure(doing, each.error)
        return {(p.topic, p.partition): (p.offset, p.metadata or "") for p in found if p.offset >= 0}

    def _is_reachable(self) -> bool:
        """Whether the cluster has brokers; CannotConnect when it does not answer."""
        return bool(self.metadata().brokers)

    @contextmanager
    def _group_consumer(self, group: str, stable: bool) -> Iterator[Consumer]:
        """A consumer that never joins the group; the last few stay open for further queries."""
        level = "read_committed" if stable else "read_uncommitted"
        with self._consumers_lock:
            member = self._group_consumers.pop((group, stable), None)
            if member is None:
                settings = {
                    **client_settings(self.connection),
                    "group.id": group,
                    "enable.auto.commit": False,
                    "isolation.level": level,
                    "error_cb": self._client_errors,
                }
                member = open_client(Consumer, self.connection, settings)
            try:
                yield member
            except BaseException:
                member.close()
                raise
            self._group_consumers[group, stable] = member
            while len(self._group_consumers) > _MAX_CONSUMERS:
                self._group_consumers.pop(next(iter(self._group_consumers))).close()

    def ask_all(
        self, ask: Callable[[], Mapping[K, Future[Any]]], doing: str, left_out: Container[int] = ()
    ) -> dict[K, Any]:
        """The broker's answers by key, without those that it refuses with the codes in ``left_out``.

        The query is repeated while a refusal is transient.
        """
        deadline = time.monotonic() + self._patience
        while True:
            found: dict[K, Any] = {}
            refusal: KafkaException | None = None
            for key, future in ask().items():
                try:
                    found[key] = future.result(self._seconds + 1)
                except KafkaException as error:
                    if error.args[0].code() not in left_out:
                        refusal = refusal or error
                except FutureTimeout as error:
                    raise cannot_connect(self.connection, self._client_errors, self._seconds) from error
            if refusal is None:
                return found
            kafka_error: KafkaError = refusal.args[0]
            if is_unreachable(kafka_error) or not is_transient(kafka_error) or time.monotonic() >= deadline:
                raise self._source_failure(doing, kafka_error) from refusal
            time.sleep(_RETRY_SECONDS)

    def wait_for(self, future: Future[Any], doing: str) -> Any:
        """Wait for a broker's answer; one of our errors when it refuses or does not answer."""
        try:
            return future.result(self._seconds + 1)
        except KafkaException as error:
            raise self._source_failure(doing, error.args[0]) from error
        except FutureTimeout as error:
            raise cannot_connect(self.connection, self._client_errors, self._seconds) from error

    def _source_failure(self, doing: str, error: KafkaError) -> Exception:
        if is_unreachable(error):
            self.admin.poll(0)
            return cannot_connect(self.connection, self._client_errors, self._seconds)
        failure = broker_refusal(self.connection, doing, error)
        return SourceFailed(failure.what, next_step=failure.next_step)


def by_topic(offsets: Mapping[Partition, T]) -> dict[str, dict[int, T]]:
    """The same values, grouped by topic."""
    out: dict[str, dict[int, T]] = {}
    for (topic, number), value in offsets.items():
        out.setdefault(topic, {})[number] = value
    return out
