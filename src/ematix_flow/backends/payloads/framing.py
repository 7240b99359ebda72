"""The prefix of a payload that names its schema.

Confluent's prefix: a zero byte, the schema's id in four bytes, and for Protobuf the path to the message in
its file. Glue's prefix: a three, a byte for the compression, the id of the schema version in sixteen bytes,
and for Protobuf the number of the message among all of its file, sorted by name.
"""

from __future__ import annotations

import struct
import uuid
import zlib
from dataclasses import dataclass

SchemaId = int | str
MAX_BYTES = 256 * 1024 * 1024  # of an uncompressed payload
_CONFLUENT, _GLUE, _PLAIN, _ZLIB = 0, 3, 0, 5
_MAX_INDEXES = 64
CONFLUENT_BYTES, GLUE_BYTES = 5, 18  # including the id


class FrameError(Exception):
    """A payload without a valid prefix of its registry."""


@dataclass(frozen=True)
class FramedPayload:
    """The payload itself begins at ``start`` of ``data``."""

    schema: SchemaId
    data: bytes
    start: int


def parse_frame(value: bytes, *, glue: bool) -> FramedPayload:
    """The schema id of a payload and the rest; raises FrameError."""
    return _parse_glue(value) if glue else _parse_confluent(value)


def read_schema_id(value: bytes, *, glue: bool) -> SchemaId | None:
    """The schema id in the first bytes of a payload; None without a valid prefix."""
    if glue:
        return str(uuid.UUID(bytes=value[2:18])) if len(value) >= 18 and value[0] == _GLUE else None
    return int.from_bytes(value[1:5], "big") if len(value) >= 5 and value[0] == _CONFLUENT else None


def frame_prefix(schema: SchemaId) -> bytes:
    """The prefix for payloads of this schema."""
    if isinstance(schema, int):
        return struct.pack(">BI", _CONFLUENT, schema)
    return bytes((_GLUE, _PLAIN)) + uuid.UUID(schema).bytes


def _parse_confluent(value: bytes) -> FramedPayload:
    if len(value) < 5:
        raise FrameError(f"the payload has {len(value)} bytes, too few to name a schema")
    if value[0] != _CONFLUENT:
        raise FrameError(f"the payload begins with byte {value[0]}, not with the 0 of a registry's payloads")
    return FramedPayload(int.from_bytes(value[1:5], "big"), value, 5)


def _parse_glue(value: bytes) -> FramedPayload:
    if len(value) < 18:
        raise FrameError(f"the payload has {len(value)} bytes, too few to name a schema")
    if value[0] != _GLUE:
        raise FrameError(f"the payload begins with byte {value[0]}, not with the 3 of Glue's payloads")
    schema = str(uuid.UUID(bytes=value[2:18]))
    if value[1] == _PLAIN:
        return FramedPayload(schema, value, 18)
    if value[1] != _ZLIB:
        raise FrameError(f"the compression of the payload is unknown ({value[1]})")
    unpack = zlib.decompressobj()
    try:
        data = unpack.decompress(value[18:], MAX_BYTES)
    except zlib.error as error:
        raise FrameError(f"the payload cannot be decompressed: {error}") from None
    if unpack.unconsumed_tail:
        raise FrameError(f"the decompressed payload has more than {MAX_BYTES} bytes")
    if not unpack.eof:
        raise FrameError("the payload cannot be decompressed: it is truncated")
    return FramedPayload(schema, data, 0)


# ------------------------------------------------------------------ which message of a Protobuf file


def read_message_path(frame: FramedPayload) -> tuple[tuple[int, ...], int]:
    """Confluent's path to the message, and where the message begins; raises FrameError."""
    count, at = _read_signed(frame.data, frame.start)
    if count == 0:
        return (0,), at
    if not 0 < count <= _MAX_INDEXES:
        raise FrameError(f"the payload names its message by {count} numbers")
    path = []
    for _ in range(count):
        index, at = _read_signed(frame.data, at)
        path.append(index)
    return tuple(path), at


def read_message_number(frame: FramedPayload) -> tuple[int, int]:
    """Glue's number of the message, and where the message begins; raises FrameError."""
    return _read_varint(frame.data, frame.start)


def encode_message_path(path: tuple[int, ...]) -> bytes:
    if path == (0,):
        return b"\x00"
    return b"".join(encode_varint(number << 1) for number in (len(path), *path))


def encode_varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _read_signed(data: bytes, at: int) -> tuple[int, int]:
    number, at = _read_varint(data, at)
    return (number >> 1) ^ -(number & 1), at


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while at < len(data) and shift < 35:
        number |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 0x80:
            return number, at
    raise FrameError("the payload ends before it names its message")
