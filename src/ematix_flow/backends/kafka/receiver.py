"""Polls the messages of one topic with librdkafka, for reading without Spark.

It reads all partitions from the group's committed offsets. It never joins the group, so it takes no
partitions from its members, and two readers of one group read the same messages.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka import Message as KafkaMessage

from ematix_flow.backends.kafka.clients import open_client
from ematix_flow.backends.kafka.cluster import KafkaCluster
from ematix_flow.backends.kafka.error_codes import OUT_OF_RANGE, is_transient
from ematix_flow.backends.kafka.failures import ClientErrors, broker_refusal, cannot_connect
from ematix_flow.backends.kafka.positions import seek_offsets
from ematix_flow.backends.kafka.settings import client_settings, group_of
from ematix_flow.backends.messages.base import Message, ReadRequest, Receiver
from ematix_flow.errors import CannotConnect, SourceFailed

_UTC = dt.timezone.utc
_NOT_JOINED = (KafkaError.UNKNOWN_MEMBER_ID, KafkaError.ILLEGAL_GENERATION, KafkaError.REBALANCE_IN_PROGRESS)
_CONSUMER = {"isolation.level": "read_committed", "queued.max.messages.kbytes": 32 * 1024}


class KafkaReceiver(Receiver):
    """A receipt is the topic, the partition and the offset after the message."""

    def __init__(self, cluster: KafkaCluster, reading: ReadRequest) -> None:
        self._cluster, self._group = cluster, group_of(cluster.connection)
        self._client_errors = ClientErrors()
        begins = seek_offsets(cluster, reading)
        settings = {
            **client_settings(cluster.connection, _CONSUMER),
            "group.id": self._group,
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "error_cb": self._client_errors,
        }
        self._consumer = open_client(Consumer, cluster.connection, settings)
        self._consumer.assign([TopicPartition(*each, offset) for each, offset in begins.items()])

    def poll(self, max_messages: int, timeout: float) -> Sequence[Message]:
        found = []
        for message in self._consumer.consume(max_messages, timeout):
            error = message.error()
            if error is None:
                found.append(_as_message(message))
            else:
                self._raise_error(error)
        if not found and self._client_errors.all_brokers_down:
            failure = cannot_connect(self._cluster.connection, self._client_errors, timeout)
            self._client_errors.clear()
            self._raise_if_unreachable(failure)
        return found

    def acknowledge(self, receipts: Sequence[Any]) -> None:
        """Commit the received offsets to the group; SourceFailed when the group has members."""
        offsets: dict[tuple[str, int], int] = {}
        for topic, number, after in receipts:
            offsets[topic, number] = max(after, offsets.get((topic, number), 0))
        wanted = [TopicPartition(*each, offset) for each, offset in offsets.items()]
        try:
            for done in self._consumer.commit(offsets=wanted, asynchronous=False) or ():
                if done.error is not None:
                    raise KafkaException(done.error)
        except KafkaException as error:
            raise self._commit_failure(error.args[0]) from error

    def close(self) -> None:
        with suppress(RuntimeError):  # already closed
            self._consumer.close()

    def _raise_error(self, error: KafkaError) -> None:
        if error.code() == KafkaError._PARTITION_EOF or is_transient(error):
            return
        if error.code() in OUT_OF_RANGE:
            raise SourceFailed(
                f"Kafka no longer has the next messages to read: {error.str()}",
                next_step="open it with another group_id, or commit a newer position",
            )
        failure = broker_refusal(self._cluster.connection, "read messages", error)
        raise SourceFailed(failure.what, next_step=failure.next_step)

    def _raise_if_unreachable(self, failure: CannotConnect) -> None:
        """Raise the failure if the cluster is still unreachable: a connection may have recovered."""
        try:
            self._cluster.metadata()
        except CannotConnect:
            raise failure from None

    def _commit_failure(self, error: KafkaError) -> SourceFailed:
        if error.code() in _NOT_JOINED:
            return SourceFailed(
                f"the offsets of group {self._group!r} cannot be committed: consumers are members of it",
                next_step="stop them, or open Kafka with another group_id",
            )
        failure = broker_refusal(self._cluster.connection, f"commit offsets of group {self._group!r}", error)
        return SourceFailed(failure.what, state="nothing was acknowledged", next_step=failure.next_step)


def _as_message(message: KafkaMessage) -> Message:
    kind, milliseconds = message.timestamp()
    moment = dt.datetime.fromtimestamp(milliseconds / 1000, _UTC) if kind else None
    topic, number, offset = message.topic(), message.partition(), message.offset()
    return Message(
        value=_bytes(message.value()),
        key=_bytes(message.key()),
        topic=topic,
        partition=str(number),
        position=str(offset),
        timestamp=moment,
        headers=_headers_json(message.headers()),
        receipt=(topic, number, (offset or 0) + 1),
    )


def _headers_json(pairs: Any) -> str | None:
    if not pairs:
        return None
    texts = {name: None if value is None else value.decode("utf-8", "replace") for name, value in pairs}
    return json.dumps(texts, ensure_ascii=False)


def _bytes(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value
