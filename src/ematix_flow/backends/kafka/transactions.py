"""Commits messages and the token of their batch in one Kafka transaction.

The token is the committed offset of our group ``ematix-flow.eos.<pipeline>.<target>`` in partition 0 of the
topic: the offset counts batches, and its metadata names the last one. The batches of a query come in order,
so the last one tells whether a batch has arrived. Replays of dead letters, whose batch keys begin with
``dlq:``, use their own id and group, which end with ``.dlq``. A producer that starts a transaction fences
earlier producers with the same id.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from ematix_flow.backends.kafka.cluster import KafkaCluster, TransactionStillOpen
from ematix_flow.backends.kafka.consumer_group import bounded_name
from ematix_flow.backends.kafka.error_codes import is_transient
from ematix_flow.backends.kafka.producer import FENCED, TopicProducer, kafka_error_of, producer_settings
from ematix_flow.backends.kafka.settings import client_settings
from ematix_flow.backends.messages.base import BatchToken
from ematix_flow.errors import TargetFailed
from ematix_flow.fault_points import point
from ematix_flow.spec.connections.brokers import KafkaConnection

if TYPE_CHECKING:
    import pyarrow as pa

TRANSACTION_MS = 300_000
_METADATA_BYTES = 4_096
_COMMIT_SECONDS = 5.0  # seconds in which a running commit ends
_ABORTED = "the transaction is aborted: readers of committed messages see nothing of the batch"
_ATTEMPT_SECONDS, _PATIENCE = 30.0, 180.0
_REPLAY_KEY = "dlq:"
_STREAM_KEY = re.compile(r"stream:(.*):([0-9]+)", re.DOTALL)

_log = logging.getLogger(__name__)
_warned_too_long: set[tuple[str, str]] = set()  # warned once per process


@dataclass(frozen=True)
class BatchMarker:
    """The newest batch of a target. ``number`` counts its batches."""

    number: int
    batch_key: str
    position: str | None

    def covers(self, batch_key: str) -> bool:
        """Whether the target has that batch: it is this one, or an older one of the same query."""
        ours, other = _parse_stream_key(self.batch_key), _parse_stream_key(batch_key)
        if ours is None or other is None or ours[0] != other[0]:
            return batch_key == self.batch_key
        return other[1] <= ours[1]


def transactional_id(token: BatchToken) -> str:
    return bounded_name(f"ematix-flow.{token.pipeline}.{token.target}") + _dlq_suffix(token)


def marker_group(token: BatchToken) -> str:
    return bounded_name(f"ematix-flow.eos.{token.pipeline}.{token.target}") + _dlq_suffix(token)


def _dlq_suffix(token: BatchToken) -> str:
    return ".dlq" if token.batch_key.startswith(_REPLAY_KEY) else ""


def _parse_stream_key(batch_key: str) -> tuple[str, int] | None:
    """Query and number of ``stream:<query id>:<number>``."""
    found = _STREAM_KEY.fullmatch(batch_key)
    return (found[1], int(found[2])) if found else None


def recover_marker(
    cluster: KafkaCluster, pipeline: str, target: str, *, replays: bool = False
) -> BatchMarker | None:
    """The last committed token of a stream, or of the replays of its dead letters.

    Aborts a transaction that a dead run left open.
    """
    stream = BatchToken(pipeline, target, _REPLAY_KEY if replays else "")
    try:
        return read_marker(cluster, stream, patience=_COMMIT_SECONDS)
    except TransactionStillOpen:
        settings = producer_settings(cluster.connection)
        _KafkaTransaction(cluster.connection, "", settings, stream).fence_others()
        return read_marker(cluster, stream)


def read_marker(cluster: KafkaCluster, of: BatchToken, patience: float | None = None) -> BatchMarker | None:
    """The last committed token of this token's target.

    Waits for an open transaction; TransactionStillOpen when it does not end. A target that was moved to
    another topic has a token in each; the batch number keeps counting, so the highest one is the newest.
    """
    group = marker_group(of)
    places = [(topic, 0) for topic in cluster.topics()]
    found = cluster.committed_offsets(group, places, stable=True, patience=patience)
    if not found:
        return None
    number, metadata = max(found.values())
    try:
        read = json.loads(metadata)
        return BatchMarker(number, str(read["batch_key"]), read.get("position"))
    except (ValueError, KeyError, TypeError) as error:
        raise TargetFailed(
            f"consumer group {group!r} has commits of another program: {metadata[:200]!r}",
            next_step="give the other program another group, or delete the group when you know which batches "
            "the topic holds",
        ) from error


class TransactionalSender:
    """A producer that knows the last batch of its target. It fences earlier producers with its id.

    A later producer fences this one. It cannot be used again after an error.
    """

    def __init__(
        self, connection: KafkaConnection, topic: str, settings: Mapping[str, Any], stream: BatchToken
    ) -> None:
        """``settings`` are those of the producer."""
        self._transaction = _KafkaTransaction(connection, topic, settings, stream)
        self._transaction.fence_others()
        self._last_marker = read_marker(KafkaCluster(connection), stream, patience=_PATIENCE)

    def send(self, batches: Iterable[pa.RecordBatch], token: BatchToken) -> int:
        """Send all messages and the token, or nothing; 0 when the token is committed already."""
        transaction, last = self._transaction, self._last_marker
        outbox = transaction.topic_producer
        if last is not None and last.covers(token.batch_key):
            return 0
        transaction.open()
        number = last.number + 1 if last else 1
        try:
            sent = outbox.produce_all(transaction.track_start(batches))
            outbox.confirm()
            point("messages.produced")
            transaction.store_token(number, token)
        except TargetFailed as error:
            fenced = transaction.fenced_error(transaction.abort() or outbox.fencing_error)
            raise fenced or TargetFailed(error.what, state=_ABORTED, next_step=error.next_step) from error
        except BaseException:
            transaction.abort()
            raise
        point("messages.before_commit")
        transaction.commit()
        self._last_marker = BatchMarker(number, token.batch_key, token.position)
        point("messages.after_commit")
        return sent


class _KafkaTransaction:
    """The steps of a transaction; each is retried while its error is transient."""

    def __init__(
        self, connection: KafkaConnection, topic: str, settings: Mapping[str, Any], token: BatchToken
    ) -> None:
        settings = {
            "transaction.timeout.ms": TRANSACTION_MS,
            **settings,
            "transactional.id": transactional_id(token),
        }
        self.topic_producer = TopicProducer(connection, topic, settings)
        self._token, self._producer = token, self.topic_producer.producer
        self._timeout_seconds = int(settings["transaction.timeout.ms"]) / 1000
        self._group_member: Consumer | None = None
        self._opened_at: float | None = None  # the earliest time at which the broker began to count

    def fence_others(self) -> None:
        """Fence earlier producers with this id; their open transaction is aborted."""
        self.retry_step("begin", self._producer.init_transactions)

    def open(self) -> None:
        self._opened_at = None
        self.retry_step("begin", lambda _: self._producer.begin_transaction())

    def track_start(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if self._opened_at is None:
                self._opened_at = time.monotonic()
            yield batch

    def store_token(self, number: int, token: BatchToken) -> None:
        """Add the token, which counts batches, to the transaction."""
        place = TopicPartition(self.topic_producer.topic, 0, number, _token_metadata(token))
        group = marker_group(token)
        if self._group_member is None:
            self._group_member = _group_consumer(self.topic_producer.connection, group)
        about = self._group_member.consumer_group_metadata()

        def send(timeout: float) -> None:
            self._producer.send_offsets_to_transaction([place], about, timeout)

        self.retry_step(f"commit offsets of group {group!r}", send)

    def commit(self) -> None:
        self.retry_step("commit", self._producer.commit_transaction)

    def abort(self) -> KafkaError | None:
        """Abort now; otherwise the broker aborts the transaction after its timeout.

        A failure to abort is ignored, because its cause is the better error. It is returned only if it says
        that this producer is fenced.
        """
        try:
            self._producer.purge()
            self._producer.abort_transaction(_ATTEMPT_SECONDS)
        except (KafkaException, SystemError) as error:
            kafka_error = kafka_error_of(error, lambda: self._producer.abort_transaction(_ATTEMPT_SECONDS))
            return kafka_error if kafka_error.code() in FENCED else None
        return None

    def retry_step(self, what: str, attempt: Callable[[float], Any]) -> None:
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                attempt(_ATTEMPT_SECONDS)
                return
            except (KafkaException, SystemError) as error:
                kafka_error = kafka_error_of(error, lambda: attempt(_ATTEMPT_SECONDS))
                fenced = self.fenced_error(
                    kafka_error if kafka_error.code() in FENCED else self.topic_producer.fencing_error
                )
                if fenced is not None:
                    raise fenced from error
                if kafka_error.txn_requires_abort():
                    self.abort()
                    raise self._step_failure(what, kafka_error, _ABORTED) from error
                if not is_transient(kafka_error) or time.monotonic() >= deadline:
                    state = "the next run checks by its token whether the batch arrived"
                    raise self._step_failure(what, kafka_error, state) from error

    def fenced_error(self, kafka_error: KafkaError | None) -> TargetFailed | None:
        """The error for a run that another run has fenced, or whose transaction took too long.

        The broker reports both in the same way.
        """
        if kafka_error is None:
            return None
        seconds = 0.0 if self._opened_at is None else time.monotonic() - self._opened_at
        if seconds >= self._timeout_seconds:
            return TargetFailed(
                f"the transaction on topic {self.topic_producer.topic!r} was open for "
                f"{seconds:.0f} s, longer than "
                f"transaction.timeout.ms allows ({self._timeout_seconds:g} s), and "
                f"Kafka aborted it: {kafka_error.str()}",
                state=_ABORTED,
                next_step="send less in one batch (a smaller max_rows_per_batch), or raise "
                "transaction.timeout.ms in the target's options",
            )
        return TargetFailed(
            f"another run of pipeline {self._token.pipeline!r} has taken over topic "
            f"{self.topic_producer.topic!r}: "
            f"{kafka_error.str()}",
            state="nothing of this batch was committed by this run",
            next_step="stop one of the two runs, then run it again",
        )

    def _step_failure(self, what: str, kafka_error: KafkaError, state: str) -> TargetFailed:
        failure = self.topic_producer.failure([kafka_error])
        return TargetFailed(
            f"the transaction on topic {self.topic_producer.topic!r} failed ({what}): {failure.what}",
            state=state,
            next_step=failure.next_step,
        )


def _group_consumer(connection: KafkaConnection, group: str) -> Consumer:
    """A consumer that never joins; it only provides the group's metadata."""
    settings = {**client_settings(connection), "group.id": group, "enable.auto.commit": False}
    return Consumer(settings)


def _token_metadata(token: BatchToken) -> str:
    whole = json.dumps({"batch_key": token.batch_key, "position": token.position}, separators=(",", ":"))
    size = len(whole.encode())
    if size <= _METADATA_BYTES:
        return whole
    if (token.pipeline, token.target) not in _warned_too_long:
        _warned_too_long.add((token.pipeline, token.target))
        _log.warning(
            "the position of pipeline %r takes %d bytes, more than a batch of target %r can carry (%d): "
            "if the checkpoint is lost, the stream resumes from the group's offsets, and may send again what "
            "the target holds",
            token.pipeline,
            size,
            token.target,
            _METADATA_BYTES,
        )
    return json.dumps({"batch_key": token.batch_key}, separators=(",", ":"))
