"""Recognises data loss in the error texts of Spark's Kafka connector."""

from __future__ import annotations

import re

from ematix_flow.backends.kafka.positions import data_lost_error
from ematix_flow.errors import SourceFailed

_DATA_LOSS_TEXT = "Some data may have been lost because they are not available in Kafka any more"
_RANGE = re.compile(r"Could not read records in offset \[(\d+), (\d+)\) for topic partition (\S+)-(\d+)\b")
_CHANGED = re.compile(r"Partition (\S+)-(\d+) offset was changed from (\d+) to (\d+)")
_RESET = re.compile(r"Starting offset for (\S+)-(\d+) was (\d+) but consumer reset to (\d+)")
_DELETED = re.compile(r"Partitions (?:HashSet|Set)?\(?([^()]*?)\)? have been deleted")
_NOT_FOUND = re.compile(r"Cannot find initial offsets for partitions (?:HashSet|Set)?\(?([^()]*?)\)?\. They")
_ADDED = re.compile(r"Added partition (\S+)-(\d+) starts from (\d+) instead of 0")
_OUT_OF_RANGE = re.compile(r"OffsetOutOfRangeException.*?\{(\S+)-(\d+)=(\d+)\}", re.DOTALL)
_MOVED = re.compile(
    "LOST_TOPIC_PARTITIONS_IN_END_OFFSET|Some of partitions in Kafka topic|"
    "KAFKA_START_OFFSET_DOES_NOT_MATCH_ASSIGNED|Partitions specified for Kafka start offsets don't match"
)


def explain_data_loss(text: str) -> SourceFailed | None:
    """Our error for a stream that met data loss: which messages, and what to do. None for other errors."""
    lost = _find_losses(text)
    if lost:
        return data_lost_error(lost)
    if _DATA_LOSS_TEXT in text:
        reason = text.partition("Reason:")[2].strip().splitlines()
        return data_lost_error([reason[0] if reason else "Spark does not say which messages"])
    if _MOVED.search(text):
        return SourceFailed(
            "the topic's partitions changed while the stream was reading",
            state="nothing was read past the last committed batch",
            next_step="run it again",
        )
    return None


def _find_losses(text: str) -> list[str]:
    """A line for each loss, without repetitions."""
    found = [f"{m[3]}/{m[4]}: {m[1]} to {int(m[2]) - 1} were deleted" for m in _RANGE.finditer(text)]
    found += [
        f"{m[1]}/{m[2]} ends at {m[4]}, before {m[3]}: it was created again" for m in _CHANGED.finditer(text)
    ]
    found += [f"{m[1]}/{m[2]}: {m[3]} to {int(m[4]) - 1} were deleted" for m in _RESET.finditer(text)]
    found += [
        f"{m[1]}/{m[2]}: 0 to {int(m[3]) - 1} were deleted before they were read"
        for m in _ADDED.finditer(text)
    ]
    for pattern in (_DELETED, _NOT_FOUND):
        for match in pattern.finditer(text):
            names = [name.strip() for name in match[1].split(",") if name.strip()]
            found += [f"{'/'.join(name.rsplit('-', 1))} no longer exists" for name in names]
    if not found:
        found = [f"{m[1]}/{m[2]}: {m[3]} is out of range" for m in _OUT_OF_RANGE.finditer(text)]
    return list(dict.fromkeys(found))
