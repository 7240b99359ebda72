"""Sends requests over reused connections, without coroutines on the way of a request.

It connects only to the addresses of its endpoint, knows no proxy, and follows a redirect only when the target
allows it, and only to the same scheme, host and port.
"""

from __future__ import annotations

import asyncio
import dataclasses
import ssl
from collections.abc import Callable
from typing import Any
from urllib.parse import urljoin, urlsplit

from ematix_probe.extras import require
from ematix_probe.load.answers import TIMEOUT, Answer
from ematix_probe.load.hosts import Endpoint, same_address
from ematix_probe.load.http1 import Http1Connection
from ematix_probe.load.http2 import Http2Connection
from ematix_probe.load.http_requests import RenderedRequest
from ematix_probe.load.http_target import REPEATABLE, HttpTarget

MOST_REDIRECTS = 10
MOST_REFUSALS = 10  # of one request, by an HTTP/2 server that recycles its connections
USER_AGENT = "ematix-probe"

Done = Callable[[Answer], None]
Connection = Http1Connection | Http2Connection


class CookieJar:
    """The cookies of one virtual user: those that the target's host set and that did not end."""

    def __init__(self) -> None:
        self._cookies: dict[str, str] = {}

    def take(self, answer: Answer) -> None:
        from http.cookies import CookieError, SimpleCookie

        for name, value in answer.headers:
            if name.lower() != b"set-cookie":
                continue
            try:
                read = SimpleCookie(value.decode("latin-1"))
            except CookieError:
                continue
            for key, cookie in read.items():
                if cookie["max-age"] == "0" or "1970" in cookie["expires"]:
                    self._cookies.pop(key, None)
                else:
                    self._cookies[key] = cookie.coded_value

    def add_to(self, request: RenderedRequest) -> RenderedRequest:
        if not self._cookies:
            return request
        kept = "; ".join(f"{name}={value}" for name, value in self._cookies.items())
        others = tuple(each for each in request.headers if each[0] != "Cookie")
        given = [value for name, value in request.headers if name == "Cookie"]
        return dataclasses.replace(request, headers=(*others, ("Cookie", "; ".join([*given, kept]))))


class _Exchange:
    """One request and its answer, over one connection or, with redirects and a retry, over several."""

    __slots__ = (
        "client",
        "connecting",
        "connection",
        "done",
        "hops",
        "jar",
        "refusals",
        "request",
        "retried",
        "timer",
    )

    def __init__(
        self, client: HttpClient, request: RenderedRequest, done: Done, jar: CookieJar | None
    ) -> None:
        self.client, self.request, self.done, self.jar = client, request, done, jar
        self.connection: Connection | None = None
        self.connecting: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.hops = 0
        self.retried = False
        self.refusals = 0

    def answered(self, answer: Answer, reusable: bool) -> None:
        client, connection = self.client, self.connection
        self.connection = None
        if reusable and connection is not None:
            client.give_back(connection)
        if self.jar is not None:
            self.jar.take(answer)
        if client.follows and 300 < answer.status < 400 and answer.status != 304:
            following = client.redirected(self, answer)
            if isinstance(following, RenderedRequest):
                self.hops += 1
                self.request = self.jar.add_to(following) if self.jar is not None else following
                client.begin(self)
                return
            if following is not None:
                answer = following
        self.end(answer)

    def lost(self, error: str, detail: str, untouched: bool) -> None:
        connection, self.connection = self.connection, None
        # a server may close an idle connection at the very time at which it is used again
        stale = untouched and connection is not None and connection.used > 1
        if stale and not self.retried and self.request.method in REPEATABLE:
            self.retried = True
            self.client.begin(self)
        else:
            self.end(Answer(error=error, detail=detail))

    def refused(self, error: str, detail: str) -> None:
        self.connection = None
        self.refusals += 1
        if self.refusals <= MOST_REFUSALS:
            self.client.begin(self)
        else:
            self.end(Answer(error=error, detail=detail))

    def expire(self) -> None:
        """The request's time is over."""
        self.timer = None
        if self.connecting is not None:
            self.connecting.cancel()
        connection, self.connection = self.connection, None
        if isinstance(connection, Http2Connection):
            connection.forget(self)
        elif connection is not None:
            connection.abort()
        self.end(Answer(error=TIMEOUT, detail=f"no whole answer within {self.client.timeout:g} s"))

    def end(self, answer: Answer) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        self.client.in_flight.discard(self)
        self.done(answer)


class HttpClient:
    """The connections of one process to one endpoint."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, target: HttpTarget, endpoint: Endpoint, timeout: float
    ) -> None:
        self._loop, self._target, self._endpoint = loop, target, endpoint
        self.timeout = timeout
        self.follows = target.follow_redirects
        self.in_flight: set[_Exchange] = set()
        self.opened = 0
        self._idle: list[Http1Connection] = []
        self._shared: list[Http2Connection] = []
        self._all: set[Connection] = set()
        self._openings = 0
        self._waiting: list[_Exchange] = []  # for an HTTP/2 connection that is being opened
        self._tls = tls_context(target) if target.parts.scheme == "https" else None
        parts = target.parts
        default = 443 if self._tls else 80
        host = f"[{parts.hostname}]" if parts.hostname and ":" in parts.hostname else str(parts.hostname)
        self._authority = host if endpoint.port == default else f"{host}:{endpoint.port}"
        agent = not any(name.lower() == "user-agent" for name, _ in (*target.headers, *target.fixed_headers))
        lines = [f"Host: {self._authority}\r\n", f"User-Agent: {USER_AGENT}\r\n" if agent else ""]
        lines.append("" if target.keep_alive else "Connection: close\r\n")
        self._prefix = "".join(lines).encode("latin-1")
        self._parser = None if target.http2 else import_parser()

    def send(self, request: RenderedRequest, done: Done, jar: CookieJar | None = None) -> None:
        """Send a request and call ``done`` once with its answer, later and never from here."""
        if jar is not None:
            request = jar.add_to(request)
        exchange = _Exchange(self, request, done, jar)
        self.in_flight.add(exchange)
        exchange.timer = self._loop.call_later(self.timeout, exchange.expire)
        self.begin(exchange)

    def begin(self, exchange: _Exchange) -> None:
        if self._target.http2:
            self._begin_shared(exchange)
            return
        while self._idle:
            connection = self._idle.pop()
            if connection.is_usable:
                exchange.connection = connection
                connection.start(exchange)
                return
        exchange.connecting = self._loop.create_task(self._connect(exchange))

    def _begin_shared(self, exchange: _Exchange) -> None:
        for connection in self._shared:
            if connection.is_usable:
                exchange.connection = connection
                connection.start(exchange)
                return
        if self._openings:
            self._waiting.append(exchange)
        else:
            self._openings += 1
            exchange.connecting = self._loop.create_task(self._connect(exchange))
            exchange.connecting.add_done_callback(self._serve_waiting)

    def give_back(self, connection: Connection) -> None:
        if isinstance(connection, Http1Connection) and not connection.closed:
            self._idle.append(connection)

    async def _connect(self, exchange: _Exchange) -> None:
        try:
            connection = await self._open()
        except Exception as error:
            exchange.connecting = None
            kind, detail = describe_failure(error)
            exchange.end(Answer(error=kind, detail=detail))
            return
        exchange.connecting = None
        exchange.connection = connection
        connection.start(exchange)

    def _serve_waiting(self, _opening: asyncio.Task[None]) -> None:
        """An HTTP/2 connection is open, or could not be opened: let those who waited for it try."""
        self._openings -= 1
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if each in self.in_flight:
                self.begin(each)

    async def _open(self) -> Connection:
        failure: Exception | None = None
        for address in self._endpoint.addresses:
            try:
                transport, connection = await self._loop.create_connection(
                    self._new_connection,
                    address,
                    self._endpoint.port,
                    ssl=self._tls,
                    server_hostname=self._endpoint.host.strip("[]") if self._tls else None,
                )
            except (OSError, ssl.SSLError) as error:
                failure = error
                continue
            if connection.closed:
                raise ConnectionResetError("the server closed the connection at once")
            peer = transport.get_extra_info("peername")
            if not peer or not same_address(str(peer[0]), address):
                transport.abort()
                raise ConnectionError(f"connected to {peer} in place of {address}")
            self._check_protocol(transport)
            self.opened += 1
            self._all.add(connection)
            if isinstance(connection, Http2Connection):
                self._shared.append(connection)
            return connection
        raise failure or ConnectionError("the host has no address")

    def _new_connection(self) -> Connection:
        if self._target.http2:
            return Http2Connection(
                self._authority,
                "https" if self._tls else "http",
                keep_body=self._target.needs_body,
                ended=self._ended,
            )
        assert self._parser is not None
        return Http1Connection(
            self._parser,
            self._prefix,
            keep_body=self._target.needs_body,
            keep_alive=self._target.keep_alive,
            ended=self._ended,
        )

    def _check_protocol(self, transport: asyncio.BaseTransport) -> None:
        if not self._target.http2 or self._tls is None:
            return
        chosen = transport.get_extra_info("ssl_object").selected_alpn_protocol()
        if chosen != "h2":
            transport.abort()  # type: ignore[attr-defined]
            raise NoHttp2(f"the server chose {chosen or 'no protocol'}, and not HTTP/2")

    def _ended(self, connection: Connection) -> None:
        self._all.discard(connection)
        if isinstance(connection, Http2Connection):
            if connection in self._shared:
                self._shared.remove(connection)
        elif connection in self._idle:
            self._idle.remove(connection)

    def redirected(self, exchange: _Exchange, answer: Answer) -> RenderedRequest | Answer | None:
        """The request that follows a redirect, an error, or None when the answer names no place."""
        place = answer.header(b"location")
        if place is None:
            return None
        if exchange.hops >= MOST_REDIRECTS:
            return Answer(answer.status, error="redirects", detail=f"more than {MOST_REDIRECTS} redirects")
        scheme = "https" if self._tls else "http"
        here = f"{scheme}://{self._authority}{exchange.request.target}"
        try:
            parts = urlsplit(urljoin(here, place.decode("ascii")))
            port = parts.port or (443 if parts.scheme == "https" else 80)
        except ValueError:
            return Answer(answer.status, error="protocol", detail="the redirect leads to no URL")
        same = (
            parts.scheme == scheme
            and port == self._endpoint.port
            and parts.hostname == self._target.parts.hostname
        )
        if not same:
            return Answer(
                answer.status, error="redirect to another host", detail=f"to {parts.scheme}://{parts.netloc}"
            )
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        method, request = exchange.request.method, exchange.request
        if answer.status == 303 or (answer.status in (301, 302) and method == "POST"):
            headers = tuple(each for each in request.headers if each[0].lower() != "content-type")
            return RenderedRequest("HEAD" if method == "HEAD" else "GET", target, headers)
        return dataclasses.replace(request, target=target)

    def close(self) -> None:
        """End what is in flight without an answer, and close all connections."""
        for exchange in list(self.in_flight):
            if exchange.timer is not None:
                exchange.timer.cancel()
            if exchange.connecting is not None:
                exchange.connecting.cancel()
        self.in_flight.clear()
        for connection in list(self._all):
            connection.abort()


class NoHttp2(Exception):
    """The server did not agree to HTTP/2."""


def tls_context(target: HttpTarget) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=None if target.ca_file is None else str(target.ca_file))
    if not target.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2" if target.http2 else "http/1.1"])
    return context


def describe_failure(error: Exception) -> tuple[str, str]:
    """The kind of a failed connection, and its words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return "tls certificate", error.verify_message or str(error)
    if isinstance(error, ssl.SSLError):
        return "tls", error.reason or str(error)
    if isinstance(error, NoHttp2):
        return "no http2", str(error)
    if isinstance(error, ConnectionRefusedError):
        return "connection refused", str(error)
    if isinstance(error, ConnectionResetError):
        return "connection reset", str(error)
    if isinstance(error, OSError) and error.errno in (23, 24):
        return "too many open files", str(error)
    return "cannot connect", f"{type(error).__name__}: {error}"


def import_parser() -> Any:
    return require("httptools", "load", "a load over HTTP").HttpResponseParser


def import_h2() -> Any:
    return require("h2.connection", "load", "a load over HTTP/2")
