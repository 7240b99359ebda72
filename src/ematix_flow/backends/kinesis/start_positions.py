"""Where reading of each shard starts: at the requested start, or where an earlier process stopped.

Also finds data loss: records whose retention ended before they were read.
"""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Mapping
from typing import Any

from botocore.exceptions import ClientError

from ematix_flow.backends.kinesis.client import short_name, stream_argument
from ematix_flow.backends.kinesis.failures import is_denied
from ematix_flow.backends.kinesis.positions import ShardPosition, to_utc
from ematix_flow.backends.kinesis.shards import Shard
from ematix_flow.backends.messages.base import ReadRequest
from ematix_flow.errors import ConfigError, SourceFailed

READ_EVERY = 0.2  # seconds between two reads of a shard; the service allows five reads a second
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


def first_positions(reading: ReadRequest, shards: Mapping[str, Shard]) -> dict[str, ShardPosition]:
    """The start by ``starting``, without stored positions. A shard without an entry starts at its oldest."""
    starting = reading.starting
    if isinstance(starting, dt.datetime):
        return {shard: ShardPosition(moment=to_utc(starting)) for shard in shards}
    if starting == "earliest":
        return {}
    if starting == "latest":
        moment = ShardPosition(moment=now())
        return {id: ShardPosition(ended=True) if shard.closed else moment for id, shard in shards.items()}
    raise SourceFailed(
        f"a Kinesis stream starts at 'earliest', 'latest' or a time, not at {starting!r}",
        next_step="fix where the stream starts",
    )


def stored_positions(
    client: Any, stream: str, reading: ReadRequest, shards: Mapping[str, Shard], progress: Mapping[str, str]
) -> dict[str, ShardPosition]:
    """The stored positions of an earlier process, for the shards that still have the next records."""
    retention = _retention(client, stream)
    found: dict[str, ShardPosition] = {}
    for id, text in progress.items():
        position = ShardPosition.parse(text)
        found[id] = position
        if position.ended:
            continue
        if id not in shards:
            report_data_loss(
                reading,
                stream,
                id,
                f"the records after {_last_read_text(position)}: the shard no longer exists",
            )
            found[id] = ShardPosition(ended=True)
        elif position.sequence and int(position.sequence) < shards[id].first_sequence:
            what = f"the records after {_last_read_text(position)}: the stream was deleted and created again"
            report_data_loss(reading, stream, id, what)
            found.pop(id)
        elif _is_too_old(position, retention) and position != _given_start(reading):
            assert retention is not None
            oldest = (now() - retention).isoformat(timespec="seconds")
            report_data_loss(
                reading,
                stream,
                id,
                f"the records after {_last_read_text(position)} that came before {oldest}",
            )
            found.pop(id)
    return found


def _is_too_old(position: ShardPosition, retention: dt.timedelta | None) -> bool:
    return retention is not None and position.moment is not None and position.moment < now() - retention


def _given_start(reading: ReadRequest) -> ShardPosition | None:
    """The position of a stream that starts at a time and has read nothing yet: older records do not count."""
    return (
        ShardPosition(moment=to_utc(reading.starting)) if isinstance(reading.starting, dt.datetime) else None
    )


def report_data_loss(reading: ReadRequest, stream: str, shard: str, what: str) -> None:
    """Report records that can no longer be read: SourceFailed, or a warning where loss is allowed."""
    words = f"shard {shard} of Kinesis stream {short_name(stream)!r} no longer has {what}"
    if not reading.fail_on_data_loss:
        _log.warning("%s; reading continues with the oldest record that is left", words)
        return
    raise SourceFailed(
        words,
        state="nothing was read; the positions are as before",
        next_step="to continue with what is left, set fail_on_data_loss = false; to keep records longer:  "
        f"aws kinesis increase-stream-retention-period --stream-name {short_name(stream)} "
        "--retention-period-hours 168",
    )


def _last_read_text(position: ShardPosition) -> str:
    sequence = f"sequence number {position.sequence}" if position.sequence else "the start"
    return sequence + (f" (read until {position.moment.isoformat()})" if position.moment else "")


def _retention(client: Any, stream: str) -> dt.timedelta | None:
    """The retention time of the stream; None if this user may not read it."""
    try:
        answer = client.describe_stream_summary(**stream_argument(stream))
    except ClientError as error:
        if is_denied(error):
            return None
        raise
    return dt.timedelta(hours=answer["StreamDescriptionSummary"]["RetentionPeriodHours"])
