"""The shards of a stream and their parents: a split or a merge closes parents and opens children.

The records of a key stay in order if a child is read only after all its parents are read to their end.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from ematix_flow.backends.kinesis.client import stream_argument

_LISTED_AT_ONCE = 1000
_KEYS = 2**128  # the number of possible hashes of a key


@dataclass(frozen=True)
class Shard:
    id: str
    parents: tuple[str, ...]
    first_hash: int
    last_hash: int
    first_sequence: int
    closed: bool


def list_shards(client: Any, stream: str) -> dict[str, Shard]:
    """All shards within the retention time, by id."""
    found: dict[str, Shard] = {}
    request: dict[str, Any] = {**stream_argument(stream), "MaxResults": _LISTED_AT_ONCE}
    while True:
        page = client.list_shards(**request)
        for each in page["Shards"]:
            parents = (each.get("ParentShardId"), each.get("AdjacentParentShardId"))
            hashes, sequences = each["HashKeyRange"], each["SequenceNumberRange"]
            found[each["ShardId"]] = Shard(
                each["ShardId"],
                tuple(parent for parent in parents if parent),
                int(hashes["StartingHashKey"]),
                int(hashes["EndingHashKey"]),
                int(sequences["StartingSequenceNumber"]),
                closed=sequences.get("EndingSequenceNumber") is not None,
            )
        if not page.get("NextToken"):
            return found
        request = {"NextToken": page["NextToken"], "MaxResults": _LISTED_AT_ONCE}


def readable_shards(shards: Iterable[Shard], ended: Collection[str]) -> list[Shard]:
    """The shards whose parents are all read to their end, or no longer exist."""
    known = {shard.id: shard for shard in shards}
    return [
        shard
        for shard in known.values()
        if shard.id not in ended and all(parent in ended or parent not in known for parent in shard.parents)
    ]


def cover_all_keys(shards: Iterable[Shard]) -> bool:
    """Whether the open shards among these cover every key, as those of a whole stream do."""
    return sum(shard.last_hash - shard.first_hash + 1 for shard in shards if not shard.closed) >= _KEYS
