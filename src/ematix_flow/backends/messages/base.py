"""The contracts of stream sources and message targets.

Spark's Structured Streaming runs a stream. Either Spark follows a source itself (`SparkStreamSource`: Kafka,
Delta), or we receive its messages (`ReceivedSource`: RabbitMQ, Pub/Sub, Kinesis, files), put them into a
spool that Spark follows, and acknowledge them when every target has committed. Both give messages of one
shape, or rows that have columns already. A source may read what Spark has planned by itself
(`SparkStreamSource.splits`). Only a `Split` or a `Sender` is pickled into a Spark task.
"""

from __future__ import annotations

import datetime as dt
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from ematix_flow.backends.split import Split
from ematix_flow.errors import FlowError
from ematix_flow.spec.pipelines import FileOptions
from ematix_flow.spec.streams import require_time_zone
from ematix_flow.spec.tables import ColumnSpec

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

RESOURCE_IDS = "place ids"  # in a position: the ids of its topics; no topic has this name
LagUnit = Literal["messages", "milliseconds"]

# The columns of the messages of every source.
VALUE, KEY, TOPIC, PARTITION, POSITION, TIMESTAMP, HEADERS = (
    "value",
    "key",
    "topic",
    "partition",
    "position",
    "timestamp",
    "headers",
)
MESSAGE_DDL = (
    "value binary, key binary, topic string, partition string, position string, "
    "timestamp timestamp, headers string"
)


def message_schema() -> pa.Schema:
    """A message: ``position`` is its offset, sequence number or id; ``headers`` is a JSON object."""
    import pyarrow as pa

    return pa.schema(
        [
            (VALUE, pa.binary()),
            (KEY, pa.binary()),
            (TOPIC, pa.string()),
            (PARTITION, pa.string()),
            (POSITION, pa.string()),
            (TIMESTAMP, pa.timestamp("us", tz="UTC")),
            (HEADERS, pa.string()),
        ]
    )


def collect_up_to(batches: Iterable[pa.RecordBatch], most: int) -> list[pa.RecordBatch] | None:
    """All batches, when they have at most ``most`` bytes; else None, after reading little more than that."""
    found, size = [], 0
    for batch in batches:
        size += batch.nbytes
        if size > most:
            return None
        found.append(batch)
    return found


@dataclass(frozen=True)
class ReadRequest:
    """What a stream reads from its source: from where, and how much at once.

    ``query`` names what is read: a topic, a queue, a subscription, a folder, a table. ``starting`` is
    ``earliest``, ``latest`` or a time with a zone; it applies without a position. ``resume`` is the position
    that a target has committed, and takes precedence. ``pipeline`` names the reader for brokers that
    keep the positions of readers; it is empty outside of pipelines.
    """

    query: str
    starting: str | dt.datetime = "earliest"
    resume: str | None = None
    max_rows: int | None = None
    fail_on_data_loss: bool = True
    options: Mapping[str, str] = field(default_factory=dict)
    files: FileOptions = field(default_factory=FileOptions)
    pipeline: str = ""
    has_checkpoint: bool = False  # a checkpoint says where reading continues

    def __post_init__(self) -> None:
        require_time_zone(self.starting)


@dataclass(frozen=True)
class Message:
    """One received message. ``receipt`` identifies it to its source for acknowledging."""

    value: bytes | None
    key: bytes | None = None
    topic: str | None = None
    partition: str | None = None
    position: str | None = None
    timestamp: dt.datetime | None = None  # with a zone
    headers: str | None = None  # a JSON object of texts
    receipt: Any = None
    redelivered: bool = False  # the source says that it was delivered before


class Receiver(ABC):
    """An open subscription, used from one thread.

    The caller of `poll` stores the messages durably together with `progress`, and acknowledges them when all
    targets have committed. Messages that are not acknowledged when the connection ends are delivered again,
    and equal the first delivery in all but ``receipt`` and ``redelivered``. All messages of one poll are of
    one generation, the current one when it returns.
    """

    acknowledges: bool = True  # False: positions are in `progress`, and nothing is delivered again
    lag_unit: LagUnit = "messages"  # what `lag` counts; milliseconds behind the newest message
    flags_redelivery: bool = False  # True: messages not marked ``redelivered`` are first deliveries
    generation: int = 0  # changes whenever all earlier receipts become void

    @abstractmethod
    def poll(self, max_messages: int, timeout: float) -> Sequence[Message]:
        """The available messages, waiting at most ``timeout`` seconds for the first; reconnects by itself.

        CannotConnect when the server stays unreachable, SourceFailed when it refuses.
        """

    def progress(self) -> Mapping[str, str]:
        """The positions that the last poll changed, by name (a shard, a file)."""
        return {}

    @abstractmethod
    def acknowledge(self, receipts: Sequence[Any]) -> bool | None:
        """Tell the source that these messages are done. Receipts of a lost connection are ignored.

        True when the source has confirmed it, so that none of them is delivered again in this generation;
        any other result if the source may not know it.
        """

    def reject(self, receipts: Sequence[Any]) -> bool | None:
        """As `acknowledge`, for messages that cannot be used. A source that has a dead-letter destination
        moves them there."""
        return self.acknowledge(receipts)

    def keep_alive(self) -> None:
        """Called about once a second while messages wait, for heartbeats and longer leases."""
        return

    def is_drained(self) -> bool | None:
        """Whether all available messages were received; None where the source cannot tell."""
        return None

    def lag(self) -> Mapping[str, int]:
        """The lag of each ``topic/partition`` in `lag_unit`, as far as the source reports it."""
        return {}

    @abstractmethod
    def close(self) -> None: ...


class StreamSource(ABC):
    """A system that a stream can follow."""

    kind_of_rows: str = "messages"  # or "columns": rows are typed, there is no payload to decode

    @abstractmethod
    def check(self, reading: ReadRequest) -> None:
        """Check that the source can be followed; SourceFailed for a missing topic or queue."""

    def report_committed(self, position: str) -> None:
        """Report the position up to which all targets hold everything, for tools that watch the lag."""
        return

    def close(self) -> None:
        """Close what was opened; the next call opens it again."""
        return

    def explain_failure(self, reading: ReadRequest, text: str) -> FlowError | None:
        """Our error for what Spark reports about a query on this source; None when we know nothing better."""
        return None


class SparkStreamSource(StreamSource):
    """A source that Spark follows itself; the position of a batch is in Spark's checkpoint."""

    @abstractmethod
    def streaming_frame(self, spark: SparkSession, reading: ReadRequest) -> DataFrame:
        """A streaming frame with the columns of `MESSAGE_DDL`, or with the rows' own columns."""

    def stored_messages(self, spark: SparkSession, reading: ReadRequest) -> DataFrame:
        """The messages that the source has now, as a frame with the columns of `MESSAGE_DDL`."""
        raise NotImplementedError

    def continues_checkpoint(self, planned: str, remembered: str | None, reading: ReadRequest) -> bool:
        """Whether a checkpoint that has planned up to ``planned`` still fits this request.

        ``remembered`` is the last position in a ledger, which may have topics that the checkpoint lacks.
        """
        return True

    def dropped_position(self, position: str, reading: ReadRequest) -> str | None:
        """The part of a position that this request does not read, kept for when it is requested again."""
        return None

    def with_dropped_position(self, position: str, dropped: str) -> str:
        return position

    def resource_ids(self, reading: ReadRequest, position: str | None = None) -> Mapping[str, str]:
        """The current ids of topics, by name: of those in a position, or of those that are requested.

        A topic that is deleted and created again under the same name has another id, and old positions mean
        nothing in it. A topic that does not exist, or has no id, is left out.
        """
        return {}

    def resource_ids_in(self, position: str) -> Mapping[str, str | None]:
        """The ids that `with_resource_ids` put into a position; None where the ledgers disagree."""
        return {}

    def with_resource_ids(self, position: str, ids: Mapping[str, str | None]) -> str:
        """The position as a ledger stores it, together with the ids of its topics."""
        return position

    def describe_recreated(
        self, before: Mapping[str, str | None], now: Mapping[str, str], reading: ReadRequest
    ) -> Sequence[str]:
        """A sentence for each topic whose id has changed; DataLost unless loss is allowed."""
        return ()

    def count_between(self, before: str, after: str) -> int | None:
        """The maximum number of messages between two positions; None when it is unknown."""
        return None

    def splits(
        self, reading: ReadRequest, before: str, after: str, most: int, *, whole: bool = False
    ) -> Sequence[Split] | None:
        """At most ``most`` splits of the messages between two positions; None when Spark must read them.

        They hold the same messages as Spark's frame, in batches of `message_schema`. With ``whole`` all
        messages of a partition are in one split, in order.
        """
        return None

    def read_small_batch(
        self, reading: ReadRequest, before: str, after: str, most: int
    ) -> list[pa.RecordBatch] | None:
        """The same messages, read now in this process; None when they exceed ``most`` bytes. See `splits`."""
        return None


class ReceivedSource(StreamSource):
    """A source whose messages we receive ourselves."""

    @abstractmethod
    def receiver(self, reading: ReadRequest, progress: Mapping[str, str]) -> Receiver:
        """Open a receiver where ``progress`` (all stored positions) ends."""

    def max_batch_messages(self, reading: ReadRequest) -> int | None:
        """The maximum number of messages of one batch; None for no limit."""
        return reading.max_rows


class ReceivedFileSource(ReceivedSource):
    """Files that arrive in a folder: a message is the path of a file, and Spark reads its rows."""

    kind_of_rows = "columns"

    @abstractmethod
    def read_files(
        self,
        spark: SparkSession,
        paths: Sequence[str],
        reading: ReadRequest,
        columns: Sequence[ColumnSpec] | None = None,
    ) -> DataFrame:
        """The rows of exactly these files, which messages have named.

        With ``columns``, the rows have only these columns, in their order and types: a column that a file
        lacks is null, and a value of another type is refused. Without, the rows are as in a batch read.
        SourceFailed names a file that cannot be read, here or when the rows are computed; a caller that
        reads one file at a time finds out which.
        """

    @abstractmethod
    def describe(self, spark: SparkSession, reading: ReadRequest) -> tuple[ColumnSpec, ...] | None:
        """The columns of the current files; None when there are no files yet."""


# ------------------------------------------------------------------ messages out


def outgoing_schema() -> pa.Schema:
    """The columns of outgoing messages: ``headers`` is a JSON object, ``partition`` a number or null."""
    import pyarrow as pa

    return pa.schema(
        [(VALUE, pa.binary()), (KEY, pa.binary()), (PARTITION, pa.int32()), (HEADERS, pa.string())]
    )


@dataclass(frozen=True)
class BatchToken:
    """Identifies a batch, for senders that commit messages and token together."""

    pipeline: str
    target: str
    batch_key: str
    position: str | None = None


class Sender(Protocol):
    """Picklable. Sends from inside a Spark task, and returns when the broker has confirmed everything."""

    def send(self, batches: Iterable[pa.RecordBatch], token: BatchToken | None = None) -> int:
        """Send all messages, and return their number. With a token all or none; 0 if it is committed."""
        ...

    def check(self, batch: pa.RecordBatch) -> None:
        """Raise RowRejected for a message that the broker would refuse for its content. Sends nothing."""
        ...

    def keep_open(self) -> Sender:
        """A sender for a process that sends many batches: it keeps its connection open. Not picklable.

        It cannot be used again after an error.
        """
        ...


class MessageTarget(ABC):
    """A broker as a target."""

    transactions: bool = False  # takes tokens: a reader of committed messages sees a batch exactly once

    @abstractmethod
    def check_destination(self, destination: str) -> None:
        """Check that the topic, queue or stream takes messages; TargetMissing says how to create it."""

    @abstractmethod
    def sender(self, destination: str, options: Mapping[str, str]) -> Sender: ...

    def last_token(
        self, pipeline: str, target: str, *, replays: bool = False
    ) -> tuple[str, str | None] | None:
        """Batch key and position of the newest committed batch; None when there is none.

        With ``replays`` of the replays of dead letters, else of the stream itself.
        """
        return None
