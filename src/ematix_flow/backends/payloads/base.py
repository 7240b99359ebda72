"""What turns payloads into columns and back. Knows no broker.

A decoder is built on the driver and pickled into tasks; it never raises for what a message holds: a
message that it cannot read is answered with its reason, and the rest goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from ematix_flow.spec.connections import Connection

if TYPE_CHECKING:
    import pyarrow as pa

FORMATS = ("json", "raw_bytes", "avro", "protobuf")

# Columns that every message has beside its payload, for tables and SQL that name them.
META_COLUMNS = ("_key", "_topic", "_partition", "_offset", "_event_ts", "_headers")


@dataclass(frozen=True)
class PayloadSpec:
    """How the payloads of one topic are written. ``registry`` is expanded: it holds secrets."""

    format: str = "json"
    registry: Connection | None = None
    topic: str = ""  # of it the registry's subject is made
    subject_strategy: str = "topic_name"  # topic_name | record_name | topic_record_name
    message: str = ""  # Protobuf: the message's full name, when the file has several
    register: bool = True  # an encoder may register its schema; else it uses what is there
    registry_seconds: float = 10.0  # how long a registry may take to answer, all tries together


@dataclass(frozen=True)
class BadMessage:
    """A message that could not be read: its index in the batch, and why in words."""

    index: int
    reason: str
    stage: str = "decode"  # or "write": it was read, and the table refuses it


@dataclass(frozen=True)
class DecodedBatch:
    """``rows`` has one row a readable message, which is the one at ``taken`` of the batch, in order."""

    rows: pa.RecordBatch
    indexes: pa.Array  # int64
    bad: Sequence[BadMessage] = field(default_factory=tuple)
    empty_count: int = 0  # messages without a payload (tombstones), which give no row


class PayloadDecoder(Protocol):
    """Picklable. Reads payloads alone, of one format; what a message has beside it is `metadata`'s."""

    def read(self, values: pa.Array) -> DecodedBatch:
        """``values`` are binary, one a message."""
        ...


class Decoder(Protocol):
    """Picklable. ``messages`` has the columns of `streams.message_schema`."""

    def decode(self, messages: pa.RecordBatch) -> DecodedBatch: ...


class Encoder(Protocol):
    """Picklable."""

    def encode(self, rows: pa.RecordBatch) -> pa.Array:
        """One payload a row, as binary. RowRejected names the row that the schema cannot hold."""
        ...
