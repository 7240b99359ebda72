"""The contracts of decoders and encoders, which turn payloads into columns and back.

They are independent of brokers. A decoder is built on the driver and pickled into tasks. It never raises for
the content of a message: it returns a message that it cannot read with the reason, and reads the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from ematix_flow.spec.connections import Connection

if TYPE_CHECKING:
    import pyarrow as pa

FORMATS = ("json", "raw_bytes", "avro", "protobuf")

# Columns that every message has in addition to its payload, for tables and SQL that name them.
META_COLUMNS = ("_key", "_topic", "_partition", "_offset", "_event_ts", "_headers")


@dataclass(frozen=True)
class PayloadSpec:
    """How the payloads of one topic are encoded. ``registry`` is expanded: it contains secrets."""

    format: str = "json"
    registry: Connection | None = None
    topic: str = ""  # the registry's subject is made from it
    subject_strategy: str = "topic_name"  # topic_name | record_name | topic_record_name
    message: str = ""  # Protobuf: the full name of the message, if the file has several
    register: bool = True  # whether an encoder may register a schema; else it uses the latest
    registry_seconds: float = 10.0  # the registry's time to answer, with all retries


@dataclass(frozen=True)
class BadMessage:
    """A message that cannot be read: its index in the batch, and the reason."""

    index: int
    reason: str
    stage: str = "decode"  # or "write": it was read, but the table refuses it


@dataclass(frozen=True)
class DecodedBatch:
    """``rows`` has one row per readable message, in order; ``indexes`` are their numbers in the batch."""

    rows: pa.RecordBatch
    indexes: pa.Array  # int64
    bad: Sequence[BadMessage] = field(default_factory=tuple)
    empty_count: int = 0  # messages without a payload (tombstones), which give no row


class PayloadDecoder(Protocol):
    """Picklable. Reads only the payloads, of one format; `metadata` reads the rest of a message."""

    def read(self, values: pa.Array) -> DecodedBatch:
        """``values`` are binary, one per message."""
        ...


class Decoder(Protocol):
    """Picklable. ``messages`` has the columns of `message_schema`."""

    def decode(self, messages: pa.RecordBatch) -> DecodedBatch: ...


class Encoder(Protocol):
    """Picklable."""

    def encode(self, rows: pa.RecordBatch) -> pa.Array:
        """One binary payload per row. RowRejected names a row that does not fit the schema."""
        ...
