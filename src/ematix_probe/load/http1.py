"""One connection that speaks HTTP/1.1: asyncio carries the bytes, httptools (Node's llhttp) parses answers.

It sends one request at a time and hands its answer to the exchange that it belongs to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from ematix_probe.load.answers import Answer
from ematix_probe.load.http_requests import RenderedRequest

LARGEST_BODY = 16 << 20  # of what is kept for checks
LARGEST_HEAD = 1 << 20


class Exchange(Protocol):
    """The caller that waits for the answer to one request."""

    request: RenderedRequest

    def answered(self, answer: Answer, reusable: bool) -> None: ...

    def lost(self, error: str, detail: str, untouched: bool) -> None:
        """The connection ended. ``untouched``: before the first byte of an answer."""

    def refused(self, error: str, detail: str) -> None:
        """The server says that it did nothing with the request."""


class Http1Connection(asyncio.Protocol):
    """``ended`` is called once when the connection is gone."""

    def __init__(
        self,
        parser: Callable[[Any], Any],
        prefix: bytes,
        *,
        keep_body: bool,
        keep_alive: bool,
        ended: Callable[[Http1Connection], None],
    ) -> None:
        self._make_parser = parser
        self._prefix = prefix  # of every request: the line of the host, and of the connection
        self._keep_body, self._keep_alive, self._ended = keep_body, keep_alive, ended
        self._exchange: Exchange | None = None
        self._parser: Any = None
        self._last_request: RenderedRequest | None = None
        self._last_bytes = b""
        self.transport: asyncio.Transport | None = None
        self.used = 0
        self.closed = False
        self._begin_answer()

    def _begin_answer(self) -> None:
        self._headers: list[tuple[bytes, bytes]] = []
        self._body: list[bytes] = []
        self._kept = self._size = 0
        self._has_head = self._is_complete = self._has_more = self._may_reuse = False

    @property
    def is_usable(self) -> bool:
        return not self.closed and self._exchange is None

    def start(self, exchange: Exchange) -> None:
        """Send the request of an exchange."""
        assert self.transport is not None and self._exchange is None
        request = exchange.request
        if request is not self._last_request:
            self._last_request, self._last_bytes = request, request_bytes(request, self._prefix)
        self._exchange = exchange
        self.used += 1
        if self._parser is None or request.method == "HEAD":
            self._parser = self._make_parser(self)
        self.transport.write(self._last_bytes)

    def abort(self) -> None:
        """Give up the exchange and the connection, without an error."""
        self._exchange = None
        self.closed = True
        if self.transport is not None:
            self.transport.abort()

    # asyncio calls these

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        if self._exchange is None:  # bytes that nobody asked for
            self.abort()
            return
        self._size += len(data)
        try:
            self._parser.feed_data(data)
        except Exception as error:
            exchange, self._exchange = self._exchange, None
            if exchange is not None:
                self.abort()
                exchange.lost("protocol", f"the answer is no HTTP: {error}", False)
            return
        if self._is_complete:
            self._finish()
        elif not self._has_head and self._size > LARGEST_HEAD:
            exchange, self._exchange = self._exchange, None
            self.abort()
            exchange.lost("protocol", "the head of the answer has no end", False)

    def connection_lost(self, error: Exception | None) -> None:
        self.closed = True
        exchange, self._exchange = self._exchange, None
        self._ended(self)
        if exchange is None:
            return
        if error is None and self._has_head and self._ends_with_the_connection():
            exchange.answered(self._answer(), False)
            return
        reset = isinstance(error, ConnectionResetError)
        what = "connection reset" if reset else "connection closed"
        exchange.lost(what, str(error or "the server closed the connection"), self._size == 0)

    # httptools calls these

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._is_complete:
            self._has_more = True
        else:
            self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        if self._is_complete:
            return
        self._has_head = self._parser.get_status_code() >= 200
        if self._has_head and self._is_head():
            self._complete()  # its length is that of a body that does not come

    def on_body(self, body: bytes) -> None:
        if self._is_complete:
            self._has_more = True
        elif self._keep_body and self._kept < LARGEST_BODY:
            self._body.append(body)
            self._kept += len(body)

    def on_message_complete(self) -> None:
        if self._is_complete:
            return
        if self._has_head:
            self._complete()
        else:
            self._headers = []  # of an answer such as 100: the real one follows

    def _complete(self) -> None:
        self._is_complete = True
        self._may_reuse = self._server_keeps_alive()  # the parser knows it only now

    def _is_head(self) -> bool:
        return self._last_request is not None and self._last_request.method == "HEAD"

    def _finish(self) -> None:
        """Hand out the answer, after the parser has seen all bytes that came with it."""
        exchange, self._exchange = self._exchange, None
        assert exchange is not None
        reusable = self._keep_alive and not self.closed and not self._has_more and self._may_reuse
        answer = self._answer()
        self._begin_answer()
        if not reusable:
            self.closed = True
            if self.transport is not None:
                self.transport.close()
        exchange.answered(answer, reusable)

    def _server_keeps_alive(self) -> bool:
        if not self._is_head():
            return bool(self._parser.should_keep_alive())
        closes = any(
            name.lower() == b"connection" and b"close" in value.lower() for name, value in self._headers
        )
        return not closes and self._parser.get_http_version() == "1.1"

    def _answer(self) -> Answer:
        return Answer(
            self._parser.get_status_code(),
            size=self._size,
            headers=self._headers,
            body=b"".join(self._body) if self._body else b"",
        )

    def _ends_with_the_connection(self) -> bool:
        names = {name.lower() for name, _ in self._headers}
        return not names & {b"content-length", b"transfer-encoding"}


def request_bytes(request: RenderedRequest, prefix: bytes) -> bytes:
    """The request as it goes over the wire. ``prefix`` holds the lines that all requests share."""
    head = [f"{request.method} {request.target} HTTP/1.1\r\n".encode("ascii"), prefix]
    head += [f"{name}: {value}\r\n".encode("latin-1") for name, value in request.headers]
    if request.body or request.method in ("POST", "PUT", "PATCH"):
        head.append(b"Content-Length: %d\r\n" % len(request.body))
    head.append(b"\r\n")
    head.append(request.body)
    return b"".join(head)
