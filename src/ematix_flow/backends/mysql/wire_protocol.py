"""MySQL's wire protocol where the driver has no call: rows as Arrow, described SQL, LOAD DATA from memory.

All use of the driver's private parts is here. The server sends each row as one packet of text; many packets
are split into columns together, without a Python object per value.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import pymysql
from pymysql.constants import COMMAND, CR
from pymysql.cursors import SSCursor
from pymysql.protocol import EOFPacketWrapper, FieldDescriptorPacket, MysqlPacket, OKPacketWrapper

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

_FULL_PACKET = 0xFFFFFF  # a packet of this size continues in the next one
_READ_BYTES = 1 << 18
_SEND_BYTES = 1 << 20
_EOF, _ERROR, _NULL = 0xFE, 0xFF, 0xFB
_HEADER = struct.Struct("<I")
_PREPARED = struct.Struct("<xIHH")


class GuardedConnection(pymysql.Connection):  # type: ignore[misc]  # the driver has no types
    """Never opens a file that the server asks for. Only `load_data_local` sends data."""

    def _read_query_result(self, unbuffered: bool = False) -> int:
        try:
            found: int = super()._read_query_result(unbuffered)
        except RuntimeError as error:  # the driver raises this when the server asks for a file
            raise _file_request_error(self) from error
        return found


def _read_answer(connection: Any) -> MysqlPacket:
    packet: MysqlPacket = connection._read_packet()
    if packet.is_load_local_packet():
        raise _file_request_error(connection)
    return packet


def _file_request_error(connection: Any) -> pymysql.err.OperationalError:
    """Close the connection, since the server waits for the file, and return the error."""
    connection._force_close()
    return pymysql.err.OperationalError(
        CR.CR_COMMANDS_OUT_OF_SYNC, "the server asked for a file of this machine, which was refused"
    )


@dataclass(frozen=True)
class ResultField:
    """A result column as the server describes it."""

    name: str
    type_code: int
    flags: int
    length: int
    scale: int
    charset: int


def describe_statement(connection: Any, sql: str) -> tuple[tuple[ResultField, ...], int]:
    """Prepare a statement without running it: its columns, and the number of its parameters."""
    connection._execute_command(COMMAND.COM_STMT_PREPARE, sql)
    answer = _read_answer(connection)
    statement, columns, parameters = _PREPARED.unpack_from(answer.get_all_data())
    _read_fields(connection, parameters)
    fields = _read_fields(connection, columns)
    connection._execute_command(COMMAND.COM_STMT_CLOSE, _HEADER.pack(statement))
    return fields, parameters


def _read_fields(connection: Any, count: int) -> tuple[ResultField, ...]:
    found = [connection._read_packet(FieldDescriptorPacket) for _ in range(count)]
    if count:
        connection._read_packet()  # the end of the list
    return tuple(ResultField(f.name, f.type_code, f.flags, f.length, f.scale, f.charsetnr) for f in found)


def stream_columns(connection: Any, sql: str, batch_bytes: int) -> Iterator[list[pa.Array]]:
    """The result of a SELECT as Arrow's binary columns, about ``batch_bytes`` of it at a time.

    A reader that stops early must close the connection.
    """
    connection._execute_command(COMMAND.COM_QUERY, sql)
    first = _read_answer(connection)
    if first.is_ok_packet():
        raise pymysql.err.ProgrammingError(CR.CR_UNKNOWN_ERROR, "the statement gives no rows")
    width = first.read_length_encoded_integer()
    _read_fields(connection, width)
    rows = _RowPackets(connection)
    while not rows.ended:
        data, starts = rows.take(batch_bytes)
        if starts:
            yield _split_columns(data, starts, width)


def fetch_first_rows(connection: Any, sql: str, limit: int | None) -> list[tuple[Any, ...]]:
    """At most ``limit`` rows as Python values. The connection cannot be used afterwards."""
    cursor = connection.cursor(SSCursor)
    try:
        cursor.execute(sql)
        return list(islice(cursor.fetchall_unbuffered(), limit))
    finally:
        if connection._result is not None:
            connection._result.unbuffered_active = False  # otherwise closing would read the remaining rows
        connection._force_close()


class _RowPackets:
    """Packets of rows, read in large pieces from the driver's buffered socket."""

    def __init__(self, connection: Any) -> None:
        self.ended = False
        self._connection = connection
        self._rest = b""

    def take(self, size: int) -> tuple[bytes, list[int]]:
        """Some complete packets as one buffer, and the start of each row in it."""
        buffer = bytearray(self._rest)
        starts: list[int] = []
        place, header, add_start = 0, _HEADER.unpack_from, starts.append
        while not self.ended and place < size:
            end = len(buffer)
            while end - place >= 4:
                length = header(buffer, place)[0] & _FULL_PACKET
                after = place + 4 + length
                if after > end:
                    break
                if length == _FULL_PACKET:
                    after = self._join_packets(buffer, place)
                    end = len(buffer)
                    length = after - place - 4
                kind = buffer[place + 4]
                if kind >= _EOF and (kind == _ERROR or length < 9):
                    self._finish(bytes(buffer[place + 4 : after]))
                    place = after
                    break
                add_start(place + 4)
                place = after
            if not self.ended and place < size:
                buffer += self._read_more()
        self._rest = bytes(buffer[place:])
        del buffer[place:]
        return bytes(buffer), starts

    def _read_more(self) -> bytes:
        try:
            piece: bytes = self._connection._rfile.read1(_READ_BYTES)
        except OSError as error:
            raise _connection_lost_error(str(error)) from error
        if not piece:
            raise _connection_lost_error("the server closed the connection")
        return piece

    def _join_packets(self, buffer: bytearray, place: int) -> int:
        """Join a row that came in several packets; returns where it ends."""
        end = place + 4 + _FULL_PACKET
        while True:
            while len(buffer) - end < 4:
                buffer += self._read_more()
            length: int = _HEADER.unpack_from(buffer, end)[0] & _FULL_PACKET
            while len(buffer) - end - 4 < length:
                buffer += self._read_more()
            del buffer[end : end + 4]
            end += length
            if length < _FULL_PACKET:
                return end

    def _finish(self, payload: bytes) -> None:
        packet = MysqlPacket(payload, "utf-8")
        packet.check_error()
        EOFPacketWrapper(packet)
        self.ended = True


def _connection_lost_error(why: str) -> pymysql.err.OperationalError:
    return pymysql.err.OperationalError(CR.CR_SERVER_LOST, f"Lost connection to MySQL server: {why}")


def _split_columns(data: bytes, starts: list[int], width: int) -> list[pa.Array]:
    import numpy as np

    octets = np.frombuffer(data, np.uint8)
    place = np.array(starts, np.int64)
    out = []
    for _ in range(width):
        lead = octets[place]
        length, begin = lead.astype(np.int64), place + 1
        null = lead == _NULL
        if null.any():
            length[null] = 0
        if (lead > _NULL).any():
            _measure_long(octets, lead, place, length, begin)
        place = begin + length
        out.append(_column_values(data, begin, place, null))
    return out


def _measure_long(
    octets: np.ndarray[Any, Any],
    lead: np.ndarray[Any, Any],
    place: np.ndarray[Any, Any],
    length: np.ndarray[Any, Any],
    begin: np.ndarray[Any, Any],
) -> None:
    """Set length and start of values of 251 bytes and more, whose length takes two, three or eight bytes."""
    import numpy as np

    for mark, size in ((0xFC, 2), (0xFD, 3), (0xFE, 8)):
        rows = np.flatnonzero(lead == mark)
        if len(rows):
            parts = octets[place[rows, None] + np.arange(1, size + 1)].astype(np.int64)
            length[rows] = (parts << (8 * np.arange(size, dtype=np.int64))).sum(axis=1)
            begin[rows] += size


def _column_values(
    data: bytes, begin: np.ndarray[Any, Any], end: np.ndarray[Any, Any], null: np.ndarray[Any, Any]
) -> pa.Array:
    """One column: every second value of an array over the packets; the others are the gaps between values."""
    import numpy as np
    import pyarrow as pa

    count = len(begin)
    bounds = np.empty(2 * count, np.int32)
    bounds[0::2], bounds[1::2] = begin, end
    woven = pa.Array.from_buffers(
        pa.binary(), 2 * count - 1, [None, pa.py_buffer(bounds), pa.py_buffer(data)]
    )
    places = pa.Array.from_buffers(
        pa.int64(), count, [None, pa.py_buffer(np.arange(0, 2 * count, 2, dtype=np.int64))]
    )
    values = woven.take(places)
    if not null.any():
        return values
    valid = pa.py_buffer(np.packbits(~null, bitorder="little"))
    _, offsets, content = values.buffers()
    return pa.Array.from_buffers(pa.binary(), count, [valid, offsets, content])


@dataclass(frozen=True)
class LoadDataResult:
    rows: int
    warnings: int


def load_data_local(
    connection: Any, sql: str, name: str, pieces: Iterable[bytes | memoryview]
) -> LoadDataResult:
    """Run ``LOAD DATA LOCAL INFILE 'name'`` with these pieces as the file.

    An error in the pieces ends the load. No file is opened: a server that asks for another name gets nothing.
    """
    connection._execute_command(COMMAND.COM_QUERY, sql)
    answer = connection._read_packet()
    if not answer.is_load_local_packet():
        raise pymysql.err.OperationalError(
            CR.CR_COMMANDS_OUT_OF_SYNC, "the server did not ask for the file of LOAD DATA LOCAL"
        )
    if answer.get_all_data()[1:] != name.encode():
        raise _file_request_error(connection)
    for piece in pieces:
        view = memoryview(piece)
        for start in range(0, len(view), _SEND_BYTES):
            connection.write_packet(bytes(view[start : start + _SEND_BYTES]))
    connection.write_packet(b"")
    done = OKPacketWrapper(_read_answer(connection))
    return LoadDataResult(done.affected_rows, done.warning_count)
