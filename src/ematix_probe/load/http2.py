"""One connection that speaks HTTP/2, with many requests at a time: asyncio carries, h2 parses."""

from __future__ import annotations

import asyncio
import functools
from collections import deque
from collections.abc import Callable
from typing import Any

from ematix_probe.load.answers import Answer
from ematix_probe.load.http1 import LARGEST_BODY, Exchange

WINDOW = 1 << 24
REFUSED_STREAM = 7


@functools.cache
def _patient_transitions() -> dict[Any, Any]:
    """The transitions of h2's connections, but for a GOAWAY that a client receives: it stays open."""
    from h2.connection import ConnectionInputs, ConnectionState, H2ConnectionStateMachine

    stay = (None, ConnectionState.CLIENT_OPEN)
    received = (ConnectionState.CLIENT_OPEN, ConnectionInputs.RECV_GOAWAY)
    return {**H2ConnectionStateMachine._transitions, received: stay}


class _Stream:
    __slots__ = ("body", "exchange", "headers", "kept", "size", "status")

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self.headers: list[tuple[bytes, bytes]] = []
        self.body: list[bytes] = []
        self.status = self.size = self.kept = 0


class Http2Connection(asyncio.Protocol):
    def __init__(
        self, authority: str, scheme: str, *, keep_body: bool, ended: Callable[[Http2Connection], None]
    ) -> None:
        import h2.config
        import h2.connection

        self._authority, self._scheme, self._keep_body, self._ended = authority, scheme, keep_body, ended
        # what the server sends is for our eyes only: no need for h2 to check its headers' style
        self._h2: Any = h2.connection.H2Connection(
            h2.config.H2Configuration(client_side=True, header_encoding=None, validate_inbound_headers=False)
        )
        # h2 takes no frame after a GOAWAY, although the server may still answer what it had accepted
        self._h2.state_machine._transitions = _patient_transitions()
        self._streams: dict[int, _Stream] = {}
        self._unsent: dict[int, deque[bytes]] = {}
        self.transport: asyncio.Transport | None = None
        self.used = 0
        self.closed = False

    @property
    def is_usable(self) -> bool:
        return (
            not self.closed
            and len(self._streams) < self._h2.remote_settings.max_concurrent_streams
            and self._h2.highest_outbound_stream_id + 2 < 2**31 - 1
        )

    def start(self, exchange: Exchange) -> None:
        """Send the request of an exchange on a new stream."""
        request = exchange.request
        number = self._h2.get_next_available_stream_id()
        headers = [
            (":method", request.method),
            (":authority", self._authority),
            (":scheme", self._scheme),
            (":path", request.target),
            *((name.lower(), value) for name, value in request.headers),
        ]
        if request.body:
            headers.append(("content-length", str(len(request.body))))
        self._streams[number] = _Stream(exchange)
        self.used += 1
        self._h2.send_headers(number, headers, end_stream=not request.body)
        if request.body:
            self._unsent[number] = deque([request.body])
            self._send_bodies()
        self._flush()

    def forget(self, exchange: Exchange) -> None:
        """Give up the stream of an exchange; the others go on."""
        for number, stream in list(self._streams.items()):
            if stream.exchange is exchange:
                del self._streams[number]
                self._unsent.pop(number, None)
                if not self.closed:
                    self._h2.reset_stream(number, 8)  # CANCEL
                    self._flush()

    def abort(self) -> None:
        self.closed = True
        self._streams.clear()
        if self.transport is not None:
            self.transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        self._h2.initiate_connection()
        self._h2.increment_flow_control_window(WINDOW)
        self._flush()

    def data_received(self, data: bytes) -> None:
        import h2.exceptions

        try:
            events = self._h2.receive_data(data)
        except h2.exceptions.ProtocolError as error:
            self._fail_all("protocol", f"the answer is no HTTP/2: {error}", False)
            self.abort()
            return
        for event in events:
            self._handle(event)
        if not self.closed:
            self._send_bodies()
        self._flush()

    def connection_lost(self, error: Exception | None) -> None:
        self.closed = True
        self._ended(self)
        what = "connection reset" if isinstance(error, ConnectionResetError) else "connection closed"
        self._fail_all(what, str(error or "the server closed the connection"), True)

    def _handle(self, event: Any) -> None:
        kind = type(event).__name__
        number = getattr(event, "stream_id", None)
        stream = self._streams.get(number) if number is not None else None
        if kind == "DataReceived":
            self._h2.acknowledge_received_data(event.flow_controlled_length, number)
            if stream is not None:
                stream.size += event.flow_controlled_length
                if self._keep_body and stream.kept < LARGEST_BODY:
                    stream.body.append(event.data)
                    stream.kept += len(event.data)
        elif kind == "ResponseReceived" and stream is not None:
            for name, value in event.headers:
                if name == b":status":
                    stream.status = int(value)
                else:
                    stream.headers.append((bytes(name), bytes(value)))
        elif kind == "StreamEnded" and stream is not None:
            del self._streams[event.stream_id]
            self._unsent.pop(event.stream_id, None)
            answer = Answer(
                stream.status, size=stream.size, headers=stream.headers, body=b"".join(stream.body)
            )
            stream.exchange.answered(answer, True)
            self._close_when_done()
        elif kind == "StreamReset" and stream is not None:
            del self._streams[event.stream_id]
            self._unsent.pop(event.stream_id, None)
            detail = f"the server reset the stream ({event.error_code!r})"
            if int(event.error_code) == REFUSED_STREAM:
                stream.exchange.refused("stream reset", detail)
            else:
                stream.exchange.lost("stream reset", detail, False)
        elif kind == "ConnectionTerminated":
            self.closed = True  # GOAWAY: streams up to its last one may still be answered
            last = event.last_stream_id or 0
            for late in [each for each in self._streams if each > last]:
                self._streams.pop(late).exchange.refused("connection closed", "the server goes away")
            self._close_when_done()

    def _close_when_done(self) -> None:
        if self.closed and not self._streams and self.transport is not None:
            self.transport.close()

    def _send_bodies(self) -> None:
        """Send of the bodies what the server's windows allow."""
        for number, parts in list(self._unsent.items()):
            while parts:
                room = min(self._h2.local_flow_control_window(number), self._h2.max_outbound_frame_size)
                if room <= 0:
                    break
                part = parts.popleft()
                if len(part) > room:
                    parts.appendleft(part[room:])
                    part = part[:room]
                self._h2.send_data(number, part, end_stream=not parts)
            if not parts:
                del self._unsent[number]

    def _flush(self) -> None:
        data = self._h2.data_to_send()
        if data and self.transport is not None and not self.transport.is_closing():
            self.transport.write(data)

    def _fail_all(self, error: str, detail: str, untouched: bool) -> None:
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.exchange.lost(error, detail, untouched and not stream.status)
