"""Messages and the token of their batch in one transaction of Kafka.

The token is the committed offset of a group of ours, ``ematix-flow.eos.<pipeline>.<target>``, in partition 0
of the topic: the offset counts batches, its metadata names the last one. Batches of a target come one after
another, so that the last one tells whether a batch is there. Who begins a transaction fences whoever had
the same id before.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from ematix_flow.backends.kafka.cluster import Cluster, Unstable
from ematix_flow.backends.kafka.groups import bounded
from ematix_flow.backends.kafka.sender import FENCED, KafkaSender, Outbox
from ematix_flow.backends.kafka.settings import client_settings
from ematix_flow.backends.streams import Token
from ematix_flow.errors import TargetFailed
from ematix_flow.faults import point
from ematix_flow.spec.connections.brokers import KafkaConnection

if TYPE_CHECKING:
    import pyarrow as pa

TRANSACTION_MS = 300_000
_METADATA_BYTES = 4_096
_LEFT_OPEN = 5.0  # seconds in which a commit that is under way ends
_ABORTED = "the transaction is aborted: readers of committed messages see nothing of the batch"
_ATTEMPT_SECONDS, _PATIENCE = 30.0, 180.0


@dataclass(frozen=True)
class Marker:
    """The newest batch that a target holds. ``number`` counts its batches."""

    number: int
    batch_key: str
    position: str | None


def transactional_id(pipeline: str, target: str) -> str:
    return bounded(f"ematix-flow.{pipeline}.{target}")


def marker_group(pipeline: str, target: str) -> str:
    return bounded(f"ematix-flow.eos.{pipeline}.{target}")


def settled_marker(cluster: Cluster, pipeline: str, target: str) -> Marker | None:
    """The last committed token; a transaction that a dead run left open is aborted."""
    try:
        return read_marker(cluster, pipeline, target, patience=_LEFT_OPEN)
    except Unstable:
        outbox = Outbox(
            cluster.connection, "", _settings(KafkaSender(cluster.connection, ""), pipeline, target)
        )
        _Transaction(outbox, Token(pipeline, target, "")).step("begin", outbox.producer.init_transactions)
        return read_marker(cluster, pipeline, target)


def read_marker(cluster: Cluster, pipeline: str, target: str, patience: float | None = None) -> Marker | None:
    """The last committed token of a target; an open transaction is waited for, Unstable if in vain.

    A target that was moved to another topic has one in each: the batches count on, so the newest shows.
    """
    group = marker_group(pipeline, target)
    found = cluster.committed(group, stable=True, patience=patience)
    if not found:
        return None
    number, metadata = max(found.values())
    try:
        read = json.loads(metadata)
        return Marker(number, str(read["batch_key"]), read.get("position"))
    except (ValueError, KeyError, TypeError) as error:
        raise TargetFailed(
            f"consumer group {group!r} holds no token of ours: {metadata[:200]!r}",
            next_step="another program commits in that group: give it another name, or delete the group "
            "when you know which batches the topic holds",
        ) from error


def send_once(sender: KafkaSender, batches: Iterable[pa.RecordBatch], token: Token) -> int:
    """All messages and the token, or nothing; 0 when the token is there already."""
    outbox = Outbox(sender.connection, sender.topic, _settings(sender, token.pipeline, token.target))
    transaction = _Transaction(outbox, token)
    transaction.step("begin", outbox.producer.init_transactions)
    last = read_marker(Cluster(sender.connection), token.pipeline, token.target)
    if last is not None and last.batch_key == token.batch_key:
        return 0
    outbox.producer.begin_transaction()
    try:
        sent = outbox.put_all(batches)
        outbox.confirm()
        point("messages.produced")
        transaction.mark(last.number + 1 if last else 1)
    except TargetFailed as error:
        fenced = transaction.abort() or outbox.fenced
        told = transaction.told_fenced(fenced)
        raise told or TargetFailed(error.what, state=_ABORTED, next_step=error.next_step) from error
    except BaseException:
        transaction.abort()
        raise
    point("messages.before_commit")
    transaction.commit()
    point("messages.after_commit")
    return sent


def _settings(sender: KafkaSender, pipeline: str, target: str) -> dict[str, Any]:
    return {
        "transaction.timeout.ms": TRANSACTION_MS,
        **sender.producer_settings(),
        "transactional.id": transactional_id(pipeline, target),
    }


class _Transaction:
    """The steps of one transaction, each tried again while its failure passes."""

    def __init__(self, outbox: Outbox, token: Token) -> None:
        self._outbox, self._token = outbox, token
        self._producer = outbox.producer

    def mark(self, number: int) -> None:
        """The token, which counts batches."""
        token = self._token
        place = TopicPartition(self._outbox.topic, 0, number, _metadata(token))
        group = marker_group(token.pipeline, token.target)
        with closing(_member(self._outbox.connection, group)) as member:
            about = member.consumer_group_metadata()

            def send(timeout: float) -> None:
                self._producer.send_offsets_to_transaction([place], about, timeout)

            self.step(f"commit offsets of group {group!r}", send)

    def commit(self) -> None:
        self.step("commit", self._producer.commit_transaction)

    def abort(self) -> KafkaError | None:
        """Best done at once; a transaction that nobody ends is aborted by the broker after its time.

        What led here is the better story than a failure of this, unless that says that we are fenced.
        """
        try:
            self._producer.purge()
            self._producer.abort_transaction(_ATTEMPT_SECONDS)
        except KafkaException as error:
            said: KafkaError = error.args[0]
            return said if said.code() in FENCED else None
        return None

    def step(self, what: str, attempt: Callable[[float], Any]) -> None:
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                attempt(_ATTEMPT_SECONDS)
                return
            except KafkaException as error:
                said: KafkaError = error.args[0]
                fenced = self.told_fenced(said if said.code() in FENCED else self._outbox.fenced)
                if fenced is not None:
                    raise fenced from error
                if said.txn_requires_abort():
                    self.abort()
                    raise self._failed(what, said, _ABORTED) from error
                if not said.retriable() or time.monotonic() >= deadline:
                    state = "whether the batch arrived is told by its token: the next run looks"
                    raise self._failed(what, said, state) from error

    def told_fenced(self, said: KafkaError | None) -> TargetFailed | None:
        """The error of a run that another one has overtaken."""
        if said is None:
            return None
        return TargetFailed(
            f"another run of pipeline {self._token.pipeline!r} has taken over topic {self._outbox.topic!r}: "
            f"{said.str()}",
            state="nothing of this batch was committed by this run",
            next_step="let one of the two run: stop the other, then run it again",
        )

    def _failed(self, what: str, said: KafkaError, state: str) -> TargetFailed:
        failure = self._outbox.failure([said])
        return TargetFailed(
            f"the transaction on topic {self._outbox.topic!r} failed ({what}): {failure.what}",
            state=state,
            next_step=failure.next_step,
        )


def _member(connection: KafkaConnection, group: str) -> Consumer:
    """A consumer that never joins: only what names its group is wanted."""
    settings = {**client_settings(connection), "group.id": group, "enable.auto.commit": False}
    return Consumer(settings)


def _metadata(token: Token) -> str:
    whole = json.dumps({"batch_key": token.batch_key, "position": token.position}, separators=(",", ":"))
    if len(whole.encode()) <= _METADATA_BYTES:
        return whole
    return json.dumps({"batch_key": token.batch_key}, separators=(",", ":"))
