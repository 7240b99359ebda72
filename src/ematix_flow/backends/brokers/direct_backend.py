"""A broker used from a notebook or script, without a pipeline: reads and sends messages as Arrow batches.

This module has what all brokers share: gathering messages into batches, decoding them into columns that stay
the same from batch to batch, encoding, and remembering what to acknowledge. The `direct_backend` module of
a broker adds a `Receiver`, a `Sender` and an ``open`` that takes the fields of its connection.
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from ematix_flow.backends.arrow.batch_casts import cast_batch
from ematix_flow.backends.messages.base import Message, Receiver, Sender, message_schema, outgoing_schema
from ematix_flow.backends.payloads.base import DecodedBatch, Decoder, PayloadSpec
from ematix_flow.errors import DeclarationError, SourceFailed, TargetFailed, UsageError, did_you_mean
from ematix_flow.spec.tables import ColumnSpec, TableSpec
from ematix_flow.spec.types import DataType, from_arrow

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_SIZE, BATCH_BYTES, BATCH_WINDOW, IDLE_TIMEOUT = 100_000, 16 * 1024 * 1024, 5.0, 5.0
CONNECTION_NAME = "notebook"  # in errors: a connection that is opened here is not declared
_MAX_POLL = 500
_KEEP_ALIVE_SECONDS = 1.0

_log = logging.getLogger(__name__)
Self = TypeVar("Self", bound="MessageBackend")


@dataclass(frozen=True)
class BatchLimits:
    """When a batch is full: messages, bytes, seconds since the first one; and when reading ends."""

    size: int
    size_bytes: int
    window: float
    idle: float

    def __post_init__(self) -> None:
        for name, value in (("batch_size", self.size), ("batch_bytes", self.size_bytes)):
            if value < 1:
                raise UsageError(f"{name} is {value}; it is at least 1")
        for name, seconds in (("batch_window", self.window), ("idle_timeout", self.idle)):
            if seconds <= 0:
                raise UsageError(f"{name} is {seconds}; it is more than 0 seconds")


class MessageBackend(ABC):
    """One broker, for a notebook or a script; used from one thread.

    Delivery is at least once: `commit_offsets` acknowledges what `iter_arrow_stream` has yielded, and
    messages that are never committed are delivered again to the next reader.
    """

    batch_size: int = BATCH_SIZE  # a broker's own default
    batch_bytes: int = BATCH_BYTES
    numeric_positions: bool = False  # partitions and positions are numbers, as Kafka's are

    def __init__(self, payload: PayloadSpec) -> None:
        self._payload = payload
        self._receivers: dict[str, Receiver] = {}
        self._pending: dict[str, list[Any]] = {}

    # -------------------------------------------------------------- implemented by each broker

    @abstractmethod
    def ping(self) -> str:
        """Connect, and describe the server; CannotConnect when it fails."""

    @abstractmethod
    def _open_receiver(self, place: str) -> Receiver:
        """Open a receiver for that topic, queue or subscription."""

    @abstractmethod
    def _sender(self, place: str) -> Sender:
        """A sender to that topic, queue or stream."""

    def _receipts(self, messages: Sequence[Message]) -> Sequence[Any]:
        """The receipts that acknowledge all of these; fewer where a later receipt covers earlier ones."""
        return [message.receipt for message in messages]

    def _close_others(self) -> None:
        """Close everything that the broker opened, except its receivers."""
        return

    def _with_limits(self: Self, batch_size: int | None, batch_bytes: int | None) -> Self:
        """The same object, with these limits of a batch where they are given."""
        if batch_size is not None:
            self.batch_size = batch_size
        if batch_bytes is not None:
            self.batch_bytes = batch_bytes
        return self

    # -------------------------------------------------------------- reading

    def iter_arrow_stream(
        self,
        place: str,
        *,
        batch_size: int | None = None,
        batch_bytes: int | None = None,
        batch_window: float = BATCH_WINDOW,
        idle_timeout: float = IDLE_TIMEOUT,
        columns: Sequence[ColumnSpec] | None = None,
        bad: str = "fail",
    ) -> Iterator[pa.RecordBatch]:
        """Read batches of ``place`` until no message has come for ``idle_timeout`` seconds.

        All batches have the same columns: ``columns``, or those of the registry, or for JSON those
        of the first batch. ``bad="skip"`` leaves out messages that cannot be read, with a warning; else
        they raise SourceFailed.
        """
        if bad not in ("fail", "skip"):
            raise UsageError(f"bad is {bad!r}; it is 'fail' or 'skip'")
        gathering = BatchLimits(
            self.batch_size if batch_size is None else batch_size,
            self.batch_bytes if batch_bytes is None else batch_bytes,
            batch_window,
            idle_timeout,
        )
        return self._batches(place, gathering, columns, skips=bad == "skip")

    def read_arrow_stream(self, place: str, **limits: Any) -> list[pa.RecordBatch]:
        """All batches of `iter_arrow_stream` at once, in memory."""
        return list(self.iter_arrow_stream(place, **limits))

    def _batches(
        self, place: str, gathering: BatchLimits, columns: Sequence[ColumnSpec] | None, *, skips: bool
    ) -> Iterator[pa.RecordBatch]:
        receiver = self._receiver_for(place)
        decoder: Decoder | None = None
        idle = False
        while not idle:
            messages, idle = gather_batch(receiver, gathering)
            if not messages:
                continue
            if decoder is None:
                payload = replace(self._payload, topic=place)
                decoder = choose_decoder(payload, columns, messages, numeric_positions=self.numeric_positions)
            decoded = decoder.decode(messages_to_arrow(messages))
            if decoded.bad:
                _report_bad_messages(place, messages, decoded, skips=skips)
            self._pending.setdefault(place, []).extend(self._receipts(messages))
            if decoded.rows.num_rows:
                yield decoded.rows

    def commit_offsets(self) -> None:
        """Acknowledge all batches that were yielded so far."""
        for place, receipts in self._pending.items():
            if receipts:
                self._receivers[place].acknowledge(receipts)
        self._pending.clear()

    def _receiver_for(self, place: str) -> Receiver:
        if place not in self._receivers:
            self._receivers[place] = self._open_receiver(place)
        return self._receivers[place]

    # -------------------------------------------------------------- writing

    def write_arrow_stream(
        self,
        place: str,
        batches: Iterable[pa.RecordBatch] | pa.Table | pa.RecordBatchReader | pa.RecordBatch,
        message_key_column: str | None = None,
    ) -> int:
        """Send every row as a message, wait until the broker has confirmed all, and return their number."""
        payload = replace(self._payload, topic=place)
        return self._sender(place).send(
            encode_batches(as_record_batches(batches), payload, message_key_column)
        )

    # -------------------------------------------------------------- ending

    def close(self) -> None:
        """Close all connections; messages that were not committed stay unacknowledged."""
        receivers, self._receivers = self._receivers, {}
        self._pending.clear()
        for receiver in receivers.values():
            receiver.close()
        self._close_others()

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()


class RefusableBackend(MessageBackend):
    """A broker that takes messages back; its own ``nack_pending`` says where they go."""

    def pending_count(self) -> int:
        """The number of messages that were yielded and not committed."""
        return sum(len(receipts) for receipts in self._pending.values())

    def _refuse_pending(self, refuse: Callable[[Receiver, Sequence[Any]], None]) -> int:
        """Refuse the messages that were yielded and not committed, and return their number."""
        count = self.pending_count()
        for place, receipts in self._pending.items():
            refuse(self._receivers[place], receipts)
        self._pending.clear()
        return count


# ------------------------------------------------------------------ the steps


def gather_batch(receiver: Receiver, until: BatchLimits) -> tuple[list[Message], bool]:
    """The messages of one batch, and whether the source has been idle for too long."""
    messages: list[Message] = []
    size = 0
    now = kept_alive_at = time.monotonic()
    idle_at, full_at = now + until.idle, float("inf")
    while len(messages) < until.size and size < until.size_bytes:
        wait = min(idle_at, full_at) - now
        if wait <= 0:
            return messages, now >= idle_at
        polled = receiver.poll(min(until.size - len(messages), _MAX_POLL), min(wait, _KEEP_ALIVE_SECONDS))
        now = time.monotonic()
        if polled:
            full_at = min(full_at, now + until.window)
            idle_at = now + until.idle
            messages += polled
            size += sum(len(message.value or b"") + len(message.key or b"") for message in polled)
        if messages and now - kept_alive_at >= _KEEP_ALIVE_SECONDS:
            receiver.keep_alive()
            kept_alive_at = now
    return messages, False


def messages_to_arrow(messages: Sequence[Message]) -> pa.RecordBatch:
    """Messages as a batch with the columns of `message_schema`."""
    import pyarrow as pa

    schema = message_schema()
    arrays = [
        pa.array([getattr(message, field.name) for message in messages], field.type) for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def choose_decoder(
    payload: PayloadSpec,
    columns: Sequence[ColumnSpec] | None,
    messages: Sequence[Message],
    *,
    numeric_positions: bool,
) -> Decoder:
    """A decoder for ``columns``, else for the registered columns, else for those that these messages show."""
    from ematix_flow.backends.payloads.codecs import decoder_for, describe_subject, infer_json_columns
    from ematix_flow.backends.payloads.raw import VALUE_COLUMN

    if columns is None and payload.format == "raw_bytes":
        columns = (ColumnSpec(VALUE_COLUMN, DataType("bytes"), nullable=True),)
    if columns is None:
        columns = describe_subject(payload)
    if columns is None:
        columns = infer_json_columns(message.value for message in messages)
    if not columns:
        raise SourceFailed(
            f"none of the first {len(messages)} messages of {payload.topic!r} is a JSON object with fields",
            state="nothing was acknowledged",
            next_step="name the columns (columns=…), or the format of the payloads (payload_format=…)",
        )
    return decoder_for(payload, columns, numeric_positions=numeric_positions)


def encode_batches(
    batches: Iterable[pa.RecordBatch], payload: PayloadSpec, key_column: str | None
) -> Iterator[pa.RecordBatch]:
    """Batches of `outgoing_schema`: the payload of each row, and its key from ``key_column``."""
    import pyarrow as pa

    from ematix_flow.backends.payloads.codecs import encoder_for

    schema = outgoing_schema()
    encoder, table, written = None, None, None
    for batch in batches:
        if encoder is None or table is None or batch.schema != written:
            columns = tuple(ColumnSpec(each.name, _type_of(each), nullable=True) for each in batch.schema)
            encoder, table = encoder_for(payload, columns), TableSpec(None, payload.topic, columns)
            written = batch.schema
        arrays = {
            "value": encoder.encode(cast_batch(batch, table)),
            "key": _keys(batch, key_column),
        }
        rows = [arrays.get(field.name, pa.nulls(batch.num_rows, field.type)) for field in schema]
        yield pa.RecordBatch.from_arrays(rows, schema=schema)


def as_record_batches(
    given: Iterable[pa.RecordBatch] | pa.Table | pa.RecordBatchReader | pa.RecordBatch,
) -> Iterator[pa.RecordBatch]:
    """The batches of a batch, a table, a reader or an iterable of batches."""
    import pyarrow as pa

    if isinstance(given, pa.RecordBatch):
        yield given
    elif isinstance(given, pa.Table):
        yield from given.to_batches(max_chunksize=10_000)
    else:
        for batch in given:
            if not isinstance(batch, (pa.RecordBatch, pa.Table)):
                raise UsageError(
                    f"batches holds a {type(batch).__name__}; it takes pyarrow.RecordBatch",
                    next_step="pyarrow.Table.from_pylist(rows)  makes one of a list of dicts",
                )
            yield from as_record_batches(batch) if isinstance(batch, pa.Table) else (batch,)


def _type_of(field: pa.Field) -> DataType:
    import pyarrow.types as t

    if t.is_nested(field.type):
        return DataType("json")
    try:
        return from_arrow(field.type)
    except DeclarationError as error:
        raise TargetFailed(f"column {field.name!r} cannot be a message's field: {error.what}") from error


def _keys(batch: pa.RecordBatch, column: str | None) -> pa.Array:
    import pyarrow as pa
    import pyarrow.types as t

    if column is None:
        return pa.nulls(batch.num_rows, pa.binary())
    if column not in batch.schema.names:
        hint = did_you_mean(column, batch.schema.names)
        raise TargetFailed(f"message_key_column is {column!r}, which the batch does not have.{hint}")
    keys = batch.column(column)
    if t.is_dictionary(keys.type):
        keys = keys.dictionary_decode()
    if t.is_nested(keys.type):
        raise TargetFailed(f"column {column!r} is a {keys.type}, which cannot be a message's key")
    if not (t.is_binary(keys.type) or t.is_large_binary(keys.type) or t.is_fixed_size_binary(keys.type)):
        keys = keys.cast(pa.string())
    return keys.cast(pa.binary())


def _report_bad_messages(
    place: str, messages: Sequence[Message], decoded: DecodedBatch, *, skips: bool
) -> None:
    first = decoded.bad[0]
    message = messages[first.index]
    where = "/".join(part for part in (message.topic or place, message.partition) if part)
    what = (
        f"{len(decoded.bad)} of {len(messages)} messages of {place!r} cannot be read as declared; "
        f"the first is at {where}, position {message.position}: {first.reason}"
    )
    if not skips:
        raise SourceFailed(
            what,
            state="nothing was acknowledged",
            next_step="name the columns (columns=…), or pass  bad='skip'  to leave such messages out",
        )
    _log.warning("%s; they are left out", what)
