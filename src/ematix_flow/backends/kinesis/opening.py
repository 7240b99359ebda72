"""Where each shard of a stream is begun: anew, or where an earlier process has stopped.

Also finds what was lost meanwhile: records that passed out of retention before they were read.
"""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Mapping
from typing import Any

from botocore.exceptions import ClientError

from ematix_flow.backends.kinesis.client import named, short
from ematix_flow.backends.kinesis.failures import is_denied
from ematix_flow.backends.kinesis.positions import Position, utc
from ematix_flow.backends.kinesis.shards import Shard
from ematix_flow.backends.streams import Reading
from ematix_flow.errors import ConfigError, SourceFailed

READ_EVERY = 0.2  # seconds between two reads of a shard, of which the service allows five a second
_IDLE_MILLISECONDS = "250"

_log = logging.getLogger(__name__)


def now() -> dt.datetime:
    return dt.datetime.now(dt.timezone.utc)


def idle_seconds(options: Mapping[str, str]) -> float:
    """``idle_poll_ms``: how long to wait after a read of a shard that found nothing."""
    given = options.get("idle_poll_ms", _IDLE_MILLISECONDS)
    if not given.isdecimal():
        raise ConfigError(f"the option  idle_poll_ms  is {given!r}; it is a number of milliseconds")
    return max(READ_EVERY, int(given) / 1000)


def first_positions(reading: Reading, shards: Mapping[str, Shard]) -> dict[str, Position]:
    """Who has no position yet begins by ``starting``. A shard without an entry begins at its oldest."""
    starting = reading.starting
    if isinstance(starting, dt.datetime):
        return {shard: Position(moment=utc(starting)) for shard in shards}
    if starting == "earliest":
        return {}
    if starting == "latest":
        moment = Position(moment=now())
        return {id: Position(ended=True) if shard.closed else moment for id, shard in shards.items()}
    raise SourceFailed(
        f"a Kinesis stream starts at 'earliest', 'latest' or a moment, not at {starting!r}",
        next_step="mend where the stream starts",
    )


def stored_positions(
    client: Any, stream: str, reading: Reading, shards: Mapping[str, Shard], progress: Mapping[str, str]
) -> dict[str, Position]:
    """The positions of an earlier process, as far as their shards still have what follows."""
    kept = _retention(client, stream)
    found: dict[str, Position] = {}
    for id, text in progress.items():
        position = Position.parse(text)
        found[id] = position
        if position.ended:
            continue
        if id not in shards:
            lost(reading, stream, id, f"the records after {_last(position)}: the shard itself is gone")
            found[id] = Position(ended=True)
        elif position.sequence and int(position.sequence) < shards[id].first_sequence:
            what = f"the records after {_last(position)}: the stream was deleted and created again"
            lost(reading, stream, id, what)
            found.pop(id)
        elif _is_too_old(position, kept) and position != _as_given(reading):
            assert kept is not None
            oldest = (now() - kept).isoformat(timespec="seconds")
            lost(reading, stream, id, f"the records after {_last(position)} that came before {oldest}")
            found.pop(id)
    return found


def _is_too_old(position: Position, kept: dt.timedelta | None) -> bool:
    return kept is not None and position.moment is not None and position.moment < now() - kept


def _as_given(reading: Reading) -> Position | None:
    """The position of who begins at a moment and has found nothing yet: that was never promised."""
    return Position(moment=utc(reading.starting)) if isinstance(reading.starting, dt.datetime) else None


def lost(reading: Reading, stream: str, shard: str, what: str) -> None:
    """Records can no longer be read: SourceFailed, or a warning where that is allowed."""
    words = f"shard {shard} of Kinesis stream {short(stream)!r} no longer has {what}"
    if not reading.fail_on_data_loss:
        _log.warning("%s; reading goes on with the oldest that is there", words)
        return
    raise SourceFailed(
        words,
        state="nothing was read; the positions are as before",
        next_step="to go on with what is there, set fail_on_data_loss = false; to keep records for longer:  "
        f"aws kinesis increase-stream-retention-period --stream-name {short(stream)} "
        "--retention-period-hours 168",
    )


def _last(position: Position) -> str:
    sequence = f"sequence number {position.sequence}" if position.sequence else "the start"
    return sequence + (f" (read until {position.moment.isoformat()})" if position.moment else "")


def _retention(client: Any, stream: str) -> dt.timedelta | None:
    """For how long the stream keeps a record; None when we may not ask."""
    try:
        answer = client.describe_stream_summary(**named(stream))
    except ClientError as error:
        if is_denied(error):
            return None
        raise
    return dt.timedelta(hours=answer["StreamDescriptionSummary"]["RetentionPeriodHours"])
