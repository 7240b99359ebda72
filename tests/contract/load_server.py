"""Servers with known behaviour for load probes: HTTP/1.1 and HTTP/2, in a thread, with or without TLS.

The path of a request says what is done with it; `LoadServer.received` has every request.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit


@dataclass(frozen=True)
class Received:
    method: str
    target: str
    headers: dict[str, str]  # names in lower case
    body: bytes
    connection: int

    @property
    def path(self) -> str:
        return urlsplit(self.target).path


@dataclass
class LoadServer:
    """``/wait/MS`` answers after that time, ``/status/N`` with that status, ``/echo`` with the request;
    ``/close`` and ``/reset`` end the connection, ``/never`` does not answer. More in `_Http1._answer`.

    ``stall`` = (number of a request, seconds): from that request on, the server answers nothing for so long.
    """

    received: list[Received] = field(default_factory=list)
    stall: tuple[int, float] | None = None
    port: int = 0
    connections: int = 0
    goaway_after: int | None = None  # HTTP/2: answers to send before the connection is given up
    stalled_until: float = 0.0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def delay(self, loop: asyncio.AbstractEventLoop, received: Received) -> float:
        """How long the answer to this request has to wait, in seconds."""
        if self.stall is not None and len(self.received) == self.stall[0]:
            self.stalled_until = loop.time() + self.stall[1]
        parts = received.path.split("/")
        wait = float(parts[2]) / 1000 if parts[1] == "wait" else 0.0
        if parts[1] == "sometimes":  # each tenth request takes MS, the others nothing
            wait = float(parts[2]) / 1000 if len(self.received) % 10 == 0 else 0.0
        return max(wait, self.stalled_until - loop.time())


class _Http1(asyncio.Protocol):
    def __init__(self, server: LoadServer, loop: asyncio.AbstractEventLoop) -> None:
        self.server, self.loop = server, loop
        self.buffer = b""
        self.transport: Any = None
        self.number = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.number = self.server.connections
        self.server.connections += 1

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        while b"\r\n\r\n" in self.buffer:
            head, _, rest = self.buffer.partition(b"\r\n\r\n")
            first, *lines = head.decode("latin-1").split("\r\n")
            method, target, _version = first.split(" ")
            headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
            size = int(headers.get("content-length", 0))
            if len(rest) < size:
                return
            body, self.buffer = rest[:size], rest[size:]
            received = Received(method, target, headers, body, self.number)
            self.server.received.append(received)
            wait = self.server.delay(self.loop, received)
            if wait > 0:
                self.loop.call_later(wait, self._answer, received)
            else:
                self._answer(received)

    def _answer(self, received: Received) -> None:
        _, action, *rest = received.path.split("/")
        given = {name: values[0] for name, values in parse_qs(urlsplit(received.target).query).items()}
        if action == "status":
            self._send(int(rest[0]), b"{}")
        elif action == "echo":
            told = {
                "method": received.method,
                "target": received.target,
                "headers": received.headers,
                "body": received.body.decode("utf-8"),
            }
            self._send(200, json.dumps(told).encode(), head_only=received.method == "HEAD")
        elif action == "close":
            self.transport.close()
        elif action == "reset":
            linger = struct.pack("ii", 1, 0)
            self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self.transport.abort()
        elif action == "half":  # of a body
            self.transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
            self.transport.close()
        elif action == "junk":
            self.transport.write(b"SSH-2.0-OpenSSH_9.2\r\n\r\n")
        elif action == "redirect":
            self._send(int(given.get("status", 302)), b"", Location=given["to"])
        elif action == "circle":
            self._send(302, b"", Location="/circle")
        elif action == "chunked":
            self.transport.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            for part in (b"pa", b"id"):
                self.transport.write(b"%x\r\n%s\r\n" % (len(part), part))
            self.transport.write(b"0\r\n\r\n")
        elif action == "gzip":
            self._send(200, gzip.compress(b"paid"), Content_Encoding="gzip")
        elif action == "until-closed":  # neither a length nor chunks
            self.transport.write(b"HTTP/1.0 200 OK\r\n\r\npaid")
            self.transport.close()
        elif action == "once":  # closes an idle connection after its answer, without saying so before
            self._send(200, b"paid")
            self.loop.call_soon(self.transport.close)
        elif action == "login":
            self._send(200, b"{}", Set_Cookie=f"session={self.number}; Path=/; HttpOnly")
        elif action == "order":
            self._send(200, b'{"state": "paid", "items": [{"price": 5}]}', Content_Type="application/json")
        elif action == "alternating":
            self._send(200 if len(self.server.received) % 2 else 503, b"{}")
        elif action != "never":
            self._send(200, b"paid", head_only=received.method == "HEAD")

    def _send(self, status: int, body: bytes, *, head_only: bool = False, **headers: str) -> None:
        lines = [f"HTTP/1.1 {status} told", f"Content-Length: {len(body)}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        head = "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n"
        self.transport.write(head if head_only else head + body)


class _Http2(asyncio.Protocol):
    """Answers each request with 200, its path and the size of its body."""

    def __init__(self, server: LoadServer, loop: asyncio.AbstractEventLoop) -> None:
        import h2.config
        import h2.connection

        self.server, self.loop = server, loop
        config = h2.config.H2Configuration(client_side=False, header_encoding="utf-8")
        self.h2 = h2.connection.H2Connection(config)
        self.requests: dict[int, list[Any]] = {}
        self.accepted = 0
        self.transport: Any = None
        self.number = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.number = self.server.connections
        self.server.connections += 1
        self.h2.initiate_connection()
        self.transport.write(self.h2.data_to_send())

    def data_received(self, data: bytes) -> None:
        for event in self.h2.receive_data(data):
            kind = type(event).__name__
            if kind == "RequestReceived":
                self.requests[event.stream_id] = [dict(event.headers), b""]
            elif kind == "DataReceived":
                self.requests[event.stream_id][1] += event.data
                self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            elif kind == "StreamEnded":
                self._accept(event.stream_id)
        self.transport.write(self.h2.data_to_send())

    def _accept(self, stream: int) -> None:
        headers, body = self.requests.pop(stream)
        received = Received(headers[":method"], headers[":path"], headers, body, self.number)
        self.server.received.append(received)
        self.accepted += 1
        if self.accepted == self.server.goaway_after:
            # as servers do that recycle connections: what was accepted is answered after the GOAWAY
            last = struct.pack(">II", stream, 0)
            self.transport.write(
                self.h2.data_to_send() + struct.pack(">I", len(last))[1:] + b"\x07\0" + bytes(4) + last
            )
        self.loop.call_later(self.server.delay(self.loop, received), self._answer, stream, received)

    def _answer(self, stream: int, received: Received) -> None:
        if self.transport.is_closing():
            return
        if received.path.startswith("/reset"):
            self.h2.reset_stream(stream, 2)
        elif not received.path.startswith("/never"):
            self.h2.send_headers(stream, [(":status", "200"), ("content-type", "text/plain")])
            self.h2.send_data(stream, f"{received.target} {len(received.body)}".encode(), end_stream=True)
        self.transport.write(self.h2.data_to_send())


@contextlib.contextmanager
def running_load_server(
    *, http2: bool = False, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1"
) -> Iterator[LoadServer]:
    """A server on a free port, in a thread; it ends with the context."""
    chosen = LoadServer()
    loop = asyncio.new_event_loop()
    protocol: Callable[..., asyncio.Protocol] = _Http2 if http2 else _Http1
    opened: set[Any] = set()

    def new_protocol() -> asyncio.Protocol:
        made = protocol(chosen, loop)
        opened.add(made)
        return made

    listening = loop.run_until_complete(loop.create_server(new_protocol, host, 0, ssl=tls, backlog=1000))
    chosen.port = listening.sockets[0].getsockname()[1]
    thread = threading.Thread(target=loop.run_forever, name="load-server")
    thread.start()

    def stop() -> None:
        listening.close()
        for each in opened:
            if each.transport is not None:
                each.transport.abort()
        loop.call_soon(loop.stop)

    try:
        yield chosen
    finally:
        loop.call_soon_threadsafe(stop)
        thread.join()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()


@contextlib.contextmanager
def refusing_port() -> Iterator[int]:
    """A port of 127.0.0.1 on which nobody listens, and that nobody else gets meanwhile."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


@contextlib.contextmanager
def closing_port() -> Iterator[int]:
    """A port whose server closes each connection as soon as it is made."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        ended = threading.Event()
        listening.settimeout(0.1)

        def close_all() -> None:
            while not ended.is_set():
                with contextlib.suppress(TimeoutError):
                    listening.accept()[0].close()

        thread = threading.Thread(target=close_all)
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            ended.set()
            thread.join()


class MutableProxy:
    """A proxy that passes bytes on until `mute`: from then on nothing arrives anywhere, and nothing ends."""

    def __init__(self, port: int) -> None:
        self._upstream, self._muted = port, threading.Event()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def mute(self) -> None:
        self._muted.set()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                server = socket.create_connection(("127.0.0.1", self._upstream))
                self._sockets += [client, server]
                for one, other in ((client, server), (server, client)):
                    threading.Thread(target=self._pass_on, args=(one, other), daemon=True).start()

    def _pass_on(self, one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(65_536):
                if not self._muted.is_set():
                    other.sendall(data)
            if not self._muted.is_set():
                other.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        for each in (self._listening, *self._sockets):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
