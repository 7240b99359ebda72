"""Unpacks records of Amazon's producer library (KPL), which puts many messages into one record.

Such a record is a magic number, a Protobuf message and the MD5 of that. Any other record is one message.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

from ematix_flow.backends.kinesis.shards import Shard

_MAGIC = b"\xf3\x89\x9a\xc2"
_DIGEST_BYTES = 16
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


@dataclass(frozen=True)
class PackedMessage:
    """One message of a packed record; ``index`` is its number in it."""

    index: int
    key: str
    data: bytes


def unpack_record(data: bytes, shard: Shard) -> list[PackedMessage] | None:
    """The messages of a packed record that belong to this shard; None when the record is not packed.

    After a split, a producer with an old shard map may pack messages of several shards together. It sends
    those that went to the wrong shard again, so only the messages of this shard count.
    """
    if not data.startswith(_MAGIC) or len(data) <= len(_MAGIC) + _DIGEST_BYTES:
        return None
    body = data[len(_MAGIC) : -_DIGEST_BYTES]
    if hashlib.md5(body, usedforsecurity=False).digest() != data[-_DIGEST_BYTES:]:
        return None
    try:
        return [
            PackedMessage(index, key, content)
            for index, (key, place, content) in enumerate(_parse_messages(body))
            if shard.first_hash <= place <= shard.last_hash
        ]
    except (ValueError, IndexError, KeyError):
        return None


def _parse_messages(body: bytes) -> list[tuple[str, int, bytes]]:
    """Partition key, hash and data of each message. ValueError or IndexError if ``body`` is not packed."""
    keys: list[str] = []
    hashes: list[int] = []
    records: list[bytes] = []
    for number, value in _parse_fields(body):
        if number == 1 and isinstance(value, bytes):
            keys.append(value.decode())
        elif number == 2 and isinstance(value, bytes):
            hashes.append(int(value.decode()))
        elif number == 3 and isinstance(value, bytes):
            records.append(value)
    found = []
    for record in records:
        fields = dict(_parse_fields(record))
        key, explicit, content = fields[1], fields.get(2), fields[3]
        if not isinstance(key, int) or not isinstance(content, bytes):
            raise ValueError("a record without key or data")
        text = keys[key]
        place = hashes[explicit] if isinstance(explicit, int) else _hash_of(text)
        found.append((text, place, content))
    return found


def _hash_of(key: str) -> int:
    """The hash by which Kinesis assigns a partition key to a shard."""
    return int.from_bytes(hashlib.md5(key.encode(), usedforsecurity=False).digest(), "big")


def _parse_fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The field numbers and values of a Protobuf message."""
    at = 0
    while at < len(data):
        tag, at = _read_varint(data, at)
        kind = tag & 7
        if kind == _VARINT:
            value, at = _read_varint(data, at)
            yield tag >> 3, value
            continue
        if kind == _BYTES:
            size, at = _read_varint(data, at)
        elif kind in (_FIXED64, _FIXED32):
            size = 8 if kind == _FIXED64 else 4
        else:
            raise ValueError(f"unknown kind of field: {kind}")
        if at + size > len(data):
            raise ValueError("cut off")
        yield tag >> 3, data[at : at + size]
        at += size


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if not byte & 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("not a varint")
