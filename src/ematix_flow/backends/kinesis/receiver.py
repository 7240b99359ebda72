"""Reads one stream shard by shard; the caller stores the positions together with the messages.

Every shard is read at most five times a second, as the service allows. A few threads read shards in parallel;
all state belongs to the thread that polls. Shards are listed when one has ended and at intervals, always
between two reads and before their records are taken. Enhanced fan-out is not used.
"""

from __future__ import annotations

import datetime as dt
import random
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from ematix_flow.aws.errors import error_code, is_unreachable
from ematix_flow.backends.kinesis.client import short_name, stream_argument
from ematix_flow.backends.kinesis.failures import explain_error, is_throttled, translate_errors
from ematix_flow.backends.kinesis.kpl_records import unpack_record
from ematix_flow.backends.kinesis.positions import ShardPosition, to_utc
from ematix_flow.backends.kinesis.shards import Shard, cover_all_keys, list_shards, readable_shards
from ematix_flow.backends.kinesis.start_positions import (
    READ_EVERY,
    first_positions,
    idle_seconds,
    now,
    report_data_loss,
    stored_positions,
)
from ematix_flow.backends.messages.base import LagUnit, Message, ReadRequest, Receiver
from ematix_flow.errors import CannotConnect, FlowError, SourceFailed
from ematix_flow.spec.connections import KinesisConnection

RECORDS_AT_ONCE = 10_000
AT_ONCE = 8
PATIENCE = 60.0  # seconds that the service may be unreachable
LIST_EVERY = 30.0  # seconds between two listings of shards
_LIST_AGAIN = 1.0  # while children are missing
_LONGEST_PAUSE = 5.0
_KNOWN_FOR = dt.timedelta(hours=1)  # the maximum age of the stored position of an idle shard
_CLOCKS_DIFFER = dt.timedelta(minutes=10)  # the maximum difference between our clock and the service's
_POSITION_REFUSED = ("InvalidArgumentException", "ResourceNotFoundException")


@dataclass
class _ShardReader:
    """One shard that is being read. ``behind`` is in milliseconds, None before the first answer."""

    shard: Shard
    position: ShardPosition | None  # None: from the oldest record
    iterator: str | None = None
    due: float = 0.0  # the next read is not before this time
    throttled: int = 0  # times in a row
    behind: int | None = None
    at_end: bool = False  # the last read returned all records


@dataclass(frozen=True)
class _ShardRead:
    """The result of one read of a shard: records, or the error."""

    reader: _ShardReader
    asked_at: float
    limit: int
    iterator: str | None = None  # the one that was used
    records: Sequence[Mapping[str, Any]] = ()
    next_iterator: str | None = None
    behind: int = 0
    failure: ClientError | BotoCoreError | None = field(default=None, compare=False)


class KinesisReceiver(Receiver):
    """A poll may return more messages than requested, by the size of one packed record."""

    acknowledges = False
    lag_unit: LagUnit = "milliseconds"

    def __init__(
        self,
        connection: KinesisConnection,
        client: Any,
        stream: str,
        reading: ReadRequest,
        progress: Mapping[str, str],
    ) -> None:
        self._connection, self._client, self._stream, self._reading = connection, client, stream, reading
        self._idle_every = idle_seconds(reading.options)
        self._readers: dict[str, _ShardReader] = {}
        self._changed: dict[str, str] = {}
        self._pending: dict[str, str] = {}  # changed since the last poll started
        self._failure: FlowError | None = None
        self._away_since: float | None = None
        self._unlisted_since: float | None = None  # the first listing that did not succeed
        self._list_due = 0.0
        self._pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="kinesis-read")
        with translate_errors(connection, f"open stream {short_name(stream)!r}", SourceFailed):
            self._open(progress)

    def _open(self, progress: Mapping[str, str]) -> None:
        shards = list_shards(self._client, self._stream)
        if progress:
            self._positions = stored_positions(self._client, self._stream, self._reading, shards, progress)
        else:
            self._positions = first_positions(self._reading, shards)
        self._pending = {
            id: str(position) for id, position in self._positions.items() if progress.get(id) != str(position)
        }
        self._start_shards(shards)
        self._list_due = time.monotonic() + LIST_EVERY
        if not progress and self._reading.starting == "latest":
            for reader in self._readers.values():  # exactly the records after this point
                reader.iterator = self._shard_iterator(reader, "LATEST")

    def _start_shards(self, shards: Mapping[str, Shard]) -> None:
        """Start reading every shard that can be read now, each at its position."""
        ended = {id for id, position in self._positions.items() if position.ended}
        for shard in readable_shards(shards.values(), ended):
            if shard.id not in self._readers:
                self._readers[shard.id] = _ShardReader(shard, self._positions.get(shard.id))
        for id, reader in self._readers.items():
            reader.shard = shards.get(id, reader.shard)  # it may be closed now

    # -------------------------------------------------------------- receiving

    def poll(self, max_messages: int, timeout: float) -> Sequence[Message]:
        self._changed, self._pending = self._pending, {}
        try:
            return self._poll_until(max_messages, time.monotonic() + timeout)
        except FlowError:
            self._pending = self._changed  # no message was returned: report them with the next poll
            raise

    def _poll_until(self, max_messages: int, deadline: float) -> Sequence[Message]:
        found: list[Message] = []
        while True:
            if self._failure is not None:
                failure, self._failure = self._failure, None
                raise failure
            if self._list_due <= time.monotonic():
                self._list_shards()
            for answer in self._read_due_shards(max_messages):
                try:
                    found += self._process_read(answer)
                except FlowError as error:
                    if not found:
                        raise
                    self._failure = error  # raised by the next poll, so that read messages are not lost
            moment = time.monotonic()
            if found or moment >= deadline:
                return found
            soonest = min((reader.due for reader in self._readers.values()), default=deadline)
            time.sleep(max(0.0, min(soonest, self._list_due, deadline) - moment))

    def progress(self) -> Mapping[str, str]:
        return dict(self._changed)

    def _read_due_shards(self, max_messages: int) -> Sequence[_ShardRead]:
        """Read the shards that are due, those that waited longest first, up to the limit."""
        moment = time.monotonic()
        due = sorted((r for r in self._readers.values() if r.due <= moment), key=lambda r: r.due)
        due = due[: max(1, max_messages)]
        if not due:
            return ()
        limit = max(1, min(RECORDS_AT_ONCE, max_messages // len(due)))
        return list(self._pool.map(lambda reader: self._read_shard(reader, limit), due))

    def _read_shard(self, reader: _ShardReader, limit: int) -> _ShardRead:
        """Read one shard. Runs in a thread, and changes no state."""
        asked_at = time.monotonic()
        iterator = reader.iterator
        try:
            iterator = iterator or self._shard_iterator(reader)
            answer = self._client.get_records(ShardIterator=iterator, Limit=limit)
        except (ClientError, BotoCoreError) as error:
            return _ShardRead(reader, asked_at, limit, iterator, failure=error)
        next_iterator, behind = answer.get("NextShardIterator"), answer.get("MillisBehindLatest", 0)
        return _ShardRead(reader, asked_at, limit, iterator, answer["Records"], next_iterator, behind)

    def _shard_iterator(self, reader: _ShardReader, kind: str | None = None) -> str:
        position = reader.position
        request: dict[str, Any] = {**stream_argument(self._stream), "ShardId": reader.shard.id}
        if kind is not None:
            request |= {"ShardIteratorType": kind}
        elif position is None:
            request |= {"ShardIteratorType": "TRIM_HORIZON"}
        elif position.sequence is not None:
            request |= {"ShardIteratorType": "AFTER_SEQUENCE_NUMBER"}
            request |= {"StartingSequenceNumber": position.sequence}
        else:
            request |= {"ShardIteratorType": "AT_TIMESTAMP", "Timestamp": position.moment}
        return str(self._client.get_shard_iterator(**request)["ShardIterator"])

    # -------------------------------------------------------------- answers

    def _process_read(self, answer: _ShardRead) -> list[Message]:
        reader = answer.reader
        if answer.failure is not None:
            self._handle_failure(answer, answer.failure)
            return []
        self._away_since, reader.throttled = None, 0
        reader.iterator, reader.behind = answer.next_iterator, answer.behind
        reader.at_end = answer.behind == 0 and len(answer.records) < answer.limit
        reader.due = answer.asked_at + (READ_EVERY if answer.records else self._idle_every)
        messages = [each for record in answer.records for each in self._as_messages(reader.shard, record)]
        if answer.records:
            last = answer.records[-1]
            arrived = last.get("ApproximateArrivalTimestamp")
            self._record_position(
                reader, ShardPosition(last["SequenceNumber"], to_utc(arrived) if arrived else None)
            )
        elif reader.at_end:
            self._refresh_idle_position(reader)
        if answer.next_iterator is None:
            self._finish_shard(reader)
        return messages

    def _record_position(self, reader: _ShardReader, position: ShardPosition) -> None:
        reader.position = self._positions[reader.shard.id] = position
        self._changed[reader.shard.id] = str(position)

    def _refresh_idle_position(self, reader: _ShardReader) -> None:
        """Refresh the time in an idle shard's position, so that it does not count as data loss later."""
        position = reader.position
        if position is None or position.moment is None:
            return
        if now() - position.moment > _KNOWN_FOR:
            self._record_position(reader, ShardPosition(position.sequence, now() - _CLOCKS_DIFFER))

    def _finish_shard(self, reader: _ShardReader) -> None:
        """Record that a closed shard is read to its end, so that its children can start."""
        del self._readers[reader.shard.id]
        self._record_position(reader, ShardPosition(ended=True))
        self._list_due = 0.0

    def _list_shards(self) -> None:
        """List the shards, and start new ones. Retries soon if the service is busy or unreachable."""
        moment = time.monotonic()
        try:
            shards = list_shards(self._client, self._stream)
        except (ClientError, BotoCoreError) as error:
            self._unlisted_since = self._unlisted_since or moment
            passes = is_throttled(error) or is_unreachable(error)
            if not passes or moment - self._unlisted_since >= PATIENCE:
                doing = f"list the shards of {short_name(self._stream)!r}"
                kind = CannotConnect if passes else SourceFailed
                raise explain_error(self._connection, doing, kind, error) from error
            self._list_due = time.monotonic() + random.uniform(_LIST_AGAIN / 2, _LIST_AGAIN)
            return
        self._unlisted_since = None
        self._start_shards(shards)
        more_will_end = any(reader.shard.closed for reader in self._readers.values())
        waits = more_will_end or self._reads_all_keys()
        self._list_due = moment + (LIST_EVERY if waits else _LIST_AGAIN)

    def _reads_all_keys(self) -> bool:
        """Whether all open shards are being read; else some are unknown or not started."""
        return cover_all_keys(reader.shard for reader in self._readers.values())

    def _handle_failure(self, answer: _ShardRead, failure: ClientError | BotoCoreError) -> None:
        reader, code = answer.reader, error_code(failure)
        if code == "ExpiredIteratorException":
            reader.iterator = None
        elif is_throttled(failure):
            reader.throttled += 1
            longest = min(_LONGEST_PAUSE, READ_EVERY * 2**reader.throttled)
            reader.due = time.monotonic() + random.uniform(longest / 2, longest)
            reader.iterator = answer.iterator
        elif is_unreachable(failure):
            moment = time.monotonic()
            self._away_since = self._away_since or moment
            if moment - self._away_since >= PATIENCE:
                doing = f"read stream {short_name(self._stream)!r}"
                raise explain_error(self._connection, doing, CannotConnect, failure) from failure
            reader.iterator = None  # some servers answer like this to an unknown iterator
            reader.due = moment + min(1.0, PATIENCE / 4)
        elif code in _POSITION_REFUSED and self._position_is_gone(reader):
            pass
        else:
            doing = f"read shard {reader.shard.id} of stream {short_name(self._stream)!r}"
            raise explain_error(self._connection, doing, SourceFailed, failure) from failure

    def _position_is_gone(self, reader: _ShardReader) -> bool:
        """Whether the shard exists without its stored position; then reading starts at the oldest record."""
        position = reader.position
        if reader.iterator is not None or position is None or position.sequence is None:
            return False
        with translate_errors(
            self._connection, f"list the shards of {short_name(self._stream)!r}", SourceFailed
        ):
            if reader.shard.id not in list_shards(self._client, self._stream):
                return False
        if position.moment is None:  # otherwise the check at the start found that nothing is lost
            what = f"the record with sequence number {position.sequence}, nor perhaps some after it"
            report_data_loss(self._reading, self._stream, reader.shard.id, what)
        reader.position = None
        return True

    def _as_messages(self, shard: Shard, record: Mapping[str, Any]) -> list[Message]:
        arrived, sequence = record.get("ApproximateArrivalTimestamp"), str(record["SequenceNumber"])
        packed = unpack_record(record["Data"], shard)
        if packed is None:
            contents = [(record["PartitionKey"], record["Data"], sequence)]
        else:
            contents = [(each.key, each.data, f"{sequence}:{each.index}") for each in packed]
        return [
            Message(
                value=data,
                key=key.encode(),
                topic=short_name(self._stream),
                partition=shard.id,
                position=position,
                timestamp=to_utc(arrived) if arrived else None,
            )
            for key, data, position in contents
        ]

    # -------------------------------------------------------------- state

    def acknowledge(self, receipts: Sequence[Any]) -> bool | None:
        """Does nothing: Kinesis has no acknowledgements, and deletes records after their retention time."""
        return True

    def is_drained(self) -> bool | None:
        settled = self._list_due > 0 and self._unlisted_since is None and self._reads_all_keys()
        return settled and all(reader.at_end for reader in self._readers.values())

    def lag(self) -> Mapping[str, int]:
        """How many milliseconds each shard is behind; the service does not count messages."""
        stream = short_name(self._stream)
        return {
            f"{stream}/{id}": reader.behind
            for id, reader in self._readers.items()
            if reader.behind is not None
        }

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._client.close()
