"""The few bytes that name a payload's schema before the payload itself.

Confluent's: a zero, the schema's id in four bytes, and for Protobuf the path to the message in its file.
Glue's: a three, a byte for the compression, the id of the schema's version in sixteen bytes, and for
Protobuf the number of the message among all of the file, by name.
"""

from __future__ import annotations

import struct
import uuid
import zlib
from dataclasses import dataclass

SchemaId = int | str
MAX_BYTES = 256 * 1024 * 1024  # of a payload, unpacked
_CONFLUENT, _GLUE, _PLAIN, _ZLIB = 0, 3, 0, 5
_MOST_INDEXES = 64
CONFLUENT_BYTES, GLUE_BYTES = 5, 18  # up to the end of the id


class Unframed(Exception):
    """A payload that does not begin as its registry's payloads do."""


@dataclass(frozen=True)
class Framed:
    """``at`` is where the payload itself begins in ``data``."""

    schema: SchemaId
    data: bytes
    at: int


def unframed(value: bytes, *, glue: bool) -> Framed:
    """The schema's id and the rest; raises Unframed."""
    return _glue(value) if glue else _confluent(value)


def schema_id(value: bytes, *, glue: bool) -> SchemaId | None:
    """The id that the first bytes of a payload name; None when they name none."""
    if glue:
        return str(uuid.UUID(bytes=value[2:18])) if len(value) >= 18 and value[0] == _GLUE else None
    return int.from_bytes(value[1:5], "big") if len(value) >= 5 and value[0] == _CONFLUENT else None


def framed(schema: SchemaId) -> bytes:
    """What to write before a payload of this schema."""
    if isinstance(schema, int):
        return struct.pack(">BI", _CONFLUENT, schema)
    return bytes((_GLUE, _PLAIN)) + uuid.UUID(schema).bytes


def _confluent(value: bytes) -> Framed:
    if len(value) < 5:
        raise Unframed(f"the payload has {len(value)} bytes, too few to name a schema")
    if value[0] != _CONFLUENT:
        raise Unframed(f"the payload begins with byte {value[0]}, not with the 0 of a registry's payloads")
    return Framed(int.from_bytes(value[1:5], "big"), value, 5)


def _glue(value: bytes) -> Framed:
    if len(value) < 18:
        raise Unframed(f"the payload has {len(value)} bytes, too few to name a schema")
    if value[0] != _GLUE:
        raise Unframed(f"the payload begins with byte {value[0]}, not with the 3 of Glue's payloads")
    schema = str(uuid.UUID(bytes=value[2:18]))
    if value[1] == _PLAIN:
        return Framed(schema, value, 18)
    if value[1] != _ZLIB:
        raise Unframed(f"the payload is compressed in a way that is not known ({value[1]})")
    unpack = zlib.decompressobj()
    try:
        data = unpack.decompress(value[18:], MAX_BYTES)
    except zlib.error as error:
        raise Unframed(f"the payload cannot be unpacked: {error}") from None
    if unpack.unconsumed_tail:
        raise Unframed(f"the payload has more than {MAX_BYTES} bytes when unpacked")
    if not unpack.eof:
        raise Unframed("the payload cannot be unpacked: it is cut off")
    return Framed(schema, data, 0)


# ------------------------------------------------------------------ which message of a Protobuf file


def message_path(frame: Framed) -> tuple[tuple[int, ...], int]:
    """Confluent's path to the message, and where the message begins; raises Unframed."""
    count, at = _signed(frame.data, frame.at)
    if count == 0:
        return (0,), at
    if not 0 < count <= _MOST_INDEXES:
        raise Unframed(f"the payload names its message by {count} numbers")
    path = []
    for _ in range(count):
        index, at = _signed(frame.data, at)
        path.append(index)
    return tuple(path), at


def message_number(frame: Framed) -> tuple[int, int]:
    """Glue's number of the message, and where the message begins; raises Unframed."""
    return _varint(frame.data, frame.at)


def write_path(path: tuple[int, ...]) -> bytes:
    if path == (0,):
        return b"\x00"
    return b"".join(write_varint(number << 1) for number in (len(path), *path))


def write_varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _signed(data: bytes, at: int) -> tuple[int, int]:
    number, at = _varint(data, at)
    return (number >> 1) ^ -(number & 1), at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while at < len(data) and shift < 35:
        number |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 0x80:
            return number, at
    raise Unframed("the payload ends before it names its message")
