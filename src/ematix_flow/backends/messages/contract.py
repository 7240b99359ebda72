"""What a backend fulfils to be followed by a stream, and to be sent messages by one.

A stream is run by Spark's Structured Streaming. A source either is followed by Spark itself (`SparkStream`:
Kafka, Delta), or it is received by us (`Received`: RabbitMQ, Pub/Sub, Kinesis, files), put into a spool
that Spark follows, and acknowledged when every target has committed. Both bring messages of one shape, or
rows that are columns already. What Spark has planned, a source may read by itself (`SparkStream.splits`).
What is pickled into a Spark task is only a `Split` or a `Sender`.
"""

from __future__ import annotations

import datetime as dt
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from ematix_flow.errors import FlowError
from ematix_flow.spec.pipelines import FileOptions
from ematix_flow.spec.streams import require_time_zone
from ematix_flow.spec.tables import ColumnSpec

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from ematix_flow.backends.base import Split

RESOURCE_IDS = "place ids"  # in a position: the ids of its places, next to places that never have this name
LagUnit = Literal["messages", "milliseconds"]

# The columns in which messages of every source travel.
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
    """Everything, when it is no more than so many bytes; else None, with little more than that held."""
    found, size = [], 0
    for batch in batches:
        size += batch.nbytes
        if size > most:
            return None
        found.append(batch)
    return found


@dataclass(frozen=True)
class ReadRequest:
    """How a stream follows its source: from where, and how much at once.

    ``query`` names what is followed: a topic, a queue, a subscription, a folder, a table. ``starting`` is
    ``earliest``, ``latest`` or a moment with a zone, for who has no position yet. ``resume`` is the position
    that a target has committed, which wins. ``pipeline`` names who reads, where a broker keeps positions of
    readers; empty for who reads by hand.
    """

    query: str
    starting: str | dt.datetime = "earliest"
    resume: str | None = None
    max_rows: int | None = None
    fail_on_data_loss: bool = True
    options: Mapping[str, str] = field(default_factory=dict)
    files: FileOptions = field(default_factory=FileOptions)
    pipeline: str = ""
    begun: bool = False  # a checkpoint says where it goes on

    def __post_init__(self) -> None:
        require_time_zone(self.starting)


@dataclass(frozen=True)
class Message:
    """One received message. ``receipt`` is what its source acknowledges it by; opaque to all others."""

    value: bytes | None
    key: bytes | None = None
    topic: str | None = None
    partition: str | None = None
    position: str | None = None
    timestamp: dt.datetime | None = None  # with a zone
    headers: str | None = None  # a JSON object of texts
    receipt: Any = None
    redelivered: bool = False  # the source says that somebody had it before


class Receiver(ABC):
    """An open subscription, used from one thread.

    Whoever polls stores the messages durably together with `progress`, and acknowledges them when all
    targets have committed. What is not acknowledged when the connection ends comes again, and then equals
    what came before in all but ``receipt`` and ``redelivered``. All messages of one poll are of one
    generation, the one in force when it returns.
    """

    acknowledges: bool = True  # False: positions are in `progress`, and nothing comes again by itself
    lag_unit: LagUnit = "messages"  # what `lag` counts; milliseconds are those behind the newest message
    flags_redelivery: bool = False  # True: a message that is not marked ``redelivered`` never came before
    generation: int = 0  # another number whenever all receipts given before have become void

    @abstractmethod
    def poll(self, max_messages: int, timeout: float) -> Sequence[Message]:
        """What is there, waiting at most ``timeout`` seconds for the first; reconnects by itself.

        CannotConnect when the server stays away, SourceFailed when it refuses.
        """

    def progress(self) -> Mapping[str, str]:
        """What has changed in the positions by the last poll, by name (a shard, a file)."""
        return {}

    @abstractmethod
    def acknowledge(self, receipts: Sequence[Any]) -> bool | None:
        """Tell the source that these are done. Receipts of a connection that is gone are ignored.

        True when the source has answered that it knows, so that none of this generation comes again;
        anything else when it may not have heard.
        """

    def reject(self, receipts: Sequence[Any]) -> bool | None:
        """As `acknowledge`, for messages that cannot be used: where the source has a place for them, it
        moves them there."""
        return self.acknowledge(receipts)

    def keep_alive(self) -> None:
        """Called about once a second while messages wait, for who must ask for more time."""
        return

    def is_drained(self) -> bool | None:
        """Whether everything that was there is received; None where the source cannot tell."""
        return None

    def lag(self) -> Mapping[str, int]:
        """How much waits in each ``topic/partition``, in `lag_unit`, as far as the source tells."""
        return {}

    @abstractmethod
    def close(self) -> None: ...


class StreamSource(ABC):
    """A system that a stream can follow."""

    kind_of_rows: str = "messages"  # or "columns": rows come typed, there is no payload to decode

    @abstractmethod
    def check(self, reading: ReadRequest) -> None:
        """Whether it can be followed; a missing topic or queue is SourceFailed with the next step."""

    def report_committed(self, position: str) -> None:
        """All targets hold everything up to this position: tell whoever watches the lag."""
        return

    def close(self) -> None:
        """Let go of what was opened; the next question opens it again."""
        return

    def explain_failure(self, reading: ReadRequest, said: str) -> FlowError | None:
        """The error of ours for what Spark says of a query over this source; None when it says no more."""
        return None


class SparkStreamSource(StreamSource):
    """A source that Spark follows by itself; a batch's position is what its checkpoint says."""

    @abstractmethod
    def streaming_frame(self, spark: SparkSession, reading: ReadRequest) -> DataFrame:
        """A streaming frame: of `MESSAGE_DDL`, or of columns."""

    def continues_checkpoint(self, planned: str, remembered: str | None, reading: ReadRequest) -> bool:
        """Whether a checkpoint that has planned so far is of what is asked for now.

        ``remembered`` is the last position in a ledger, which may know places that the checkpoint does not.
        """
        return True

    def dropped_position(self, position: str, reading: ReadRequest) -> str | None:
        """The part of a position that is not asked for now, kept for when it is asked for again."""
        return None

    def with_dropped_position(self, position: str, left: str) -> str:
        return position

    def resource_ids(self, reading: ReadRequest, position: str | None = None) -> Mapping[str, str]:
        """The ids that places have now, by name: those of a position, or those that are asked for.

        A place that is deleted and created again under its name has another id, so that a position in the
        one is none in the other. One that is not there, or has no id, is left out.
        """
        return {}

    def resource_ids_in(self, position: str) -> Mapping[str, str | None]:
        """The ids that `with_ids` has put into a position; None for one on which ledgers do not agree."""
        return {}

    def with_resource_ids(self, position: str, ids: Mapping[str, str | None]) -> str:
        """The position as a ledger keeps it, together with the ids of its places."""
        return position

    def describe_recreated(
        self, before: Mapping[str, str | None], now: Mapping[str, str], reading: ReadRequest
    ) -> Sequence[str]:
        """What to say of each place whose id is another than before; DataLost unless loss is allowed."""
        return ()

    def count_between(self, before: str, after: str) -> int | None:
        """How many messages lie between two positions at most; None when that is not known."""
        return None

    def splits(
        self, reading: ReadRequest, before: str, after: str, most: int, *, whole: bool = False
    ) -> Sequence[Split] | None:
        """The messages between two positions for our own tasks, at most so many; None when Spark is to read.

        They are those that Spark's frame would hold, in batches of `message_schema`. With ``whole`` all of a
        partition is in one of them, in order.
        """
        return None

    def read_small_batch(
        self, reading: ReadRequest, before: str, after: str, most: int
    ) -> list[pa.RecordBatch] | None:
        """The same, read here and now; None when they are more than ``most`` bytes. Asked after `splits`."""
        return None


class ReceivedSource(StreamSource):
    """A source that we receive ourselves."""

    @abstractmethod
    def receiver(self, reading: ReadRequest, progress: Mapping[str, str]) -> Receiver:
        """Open it where ``progress`` (all that was ever stored) ends."""

    def max_batch_messages(self, reading: ReadRequest) -> int | None:
        """How many messages one batch holds at most; None for as many as there are."""
        return reading.max_rows


class ReceivedFileSource(ReceivedSource):
    """Files that come into a folder: a message is the path of one, and its rows are read by Spark."""

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

        With ``columns``, these and no others, in their order and types, whatever the files hold: one that
        they lack is null, and a value that is not of its type is refused. Without, as a batch reads them.
        SourceFailed names a file that cannot be read, here or when the rows are computed; then whoever
        asks for one file at a time finds out which.
        """

    @abstractmethod
    def describe(self, spark: SparkSession, reading: ReadRequest) -> tuple[ColumnSpec, ...] | None:
        """The columns of the files that are there now; None when there are none yet."""


# ------------------------------------------------------------------ messages out


def outgoing_schema() -> pa.Schema:
    """What a sender takes: ``headers`` is a JSON object, ``partition`` is the sink's own number or null."""
    import pyarrow as pa

    return pa.schema(
        [(VALUE, pa.binary()), (KEY, pa.binary()), (PARTITION, pa.int32()), (HEADERS, pa.string())]
    )


@dataclass(frozen=True)
class BatchToken:
    """Names a batch for a sender that commits messages and token together."""

    pipeline: str
    target: str
    batch_key: str
    position: str | None = None


class Sender(Protocol):
    """Picklable. Sends from inside a Spark task; back only when the broker has confirmed everything."""

    def send(self, batches: Iterable[pa.RecordBatch], token: BatchToken | None = None) -> int:
        """How many were sent. With a token all or nothing, and 0 when the token is there already."""
        ...

    def check(self, batch: pa.RecordBatch) -> None:
        """RowRejected for a message that the broker would refuse for what it is. Sends nothing."""
        ...

    def keep_open(self) -> Sender:
        """For one process that sends batch after batch: what it opens stays open. Not picklable.

        After an error it is of no more use.
        """
        ...


class MessageTarget(ABC):
    """A broker as a target."""

    transactions: bool = False  # takes tokens: a batch arrives once, as seen by readers of committed messages

    @abstractmethod
    def check_destination(self, place: str) -> None:
        """Whether that topic, queue or stream takes messages; TargetMissing says how to create it."""

    @abstractmethod
    def sender(self, place: str, options: Mapping[str, str]) -> Sender: ...

    def last_token(self, pipeline: str, target: str) -> tuple[str, str | None] | None:
        """Batch key and position of the newest batch that committed; None when there is none."""
        return None
