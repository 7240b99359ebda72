"""The stored position of a shard: ``progress`` of a receiver, by shard.

``<sequence number>@<time>`` is the last record that was read, and the time up to which no other record had
arrived. ``@<time>`` is the start of a shard that was not read yet. ``SHARD_END`` is a shard that a split or a
merge has closed and that is read to its end.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

from ematix_flow.errors import SourceFailed

ENDED = "SHARD_END"


@dataclass(frozen=True)
class ShardPosition:
    sequence: str | None = None
    moment: dt.datetime | None = None  # in UTC
    ended: bool = False

    def __str__(self) -> str:
        if self.ended:
            return ENDED
        return (self.sequence or "") + (f"@{self.moment.isoformat()}" if self.moment else "")

    @classmethod
    def parse(cls, text: str) -> ShardPosition:
        if text == ENDED:
            return cls(ended=True)
        sequence, _, moment = text.partition("@")
        try:
            if (sequence and not sequence.isdecimal()) or not text:
                raise ValueError(text)
            when = dt.datetime.fromisoformat(moment) if moment else None
        except ValueError as error:
            raise SourceFailed(
                f"{text!r} is not a position in a Kinesis shard",
                next_step="the stream's state is damaged or from another source: reset it",
            ) from error
        return cls(sequence or None, when)


def to_utc(moment: dt.datetime) -> dt.datetime:
    """The same time in UTC."""
    return moment.astimezone(dt.timezone.utc)
