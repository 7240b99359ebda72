"""A proxy before an S3 server that fails on demand: error answers, cut connections, requests held back.

It passes everything else on as it is, the signed ``Host`` header included.
"""

from __future__ import annotations

import http.client
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_ERRORS = {
    **{500: "InternalError", 503: "SlowDown", 403: "AccessDenied", 307: "TemporaryRedirect"},
    **{400: "ExpiredToken", 404: "NoSuchUpload", 409: "ConditionalRequestConflict", 501: "NotImplemented"},
}
_NOT_PASSED_ON = ("connection", "expect", "transfer-encoding", "keep-alive")


@dataclass
class Fault:
    """What happens to the next ``times`` requests that match; ``then`` runs before the first of them fails.

    ``headers`` are names in lower case of which a request must have one; the first ``passed`` that match
    pass.

    ``status`` is answered instead of asking the server; None cuts the connection. With ``after`` the
    server gets the request, and only its answer is lost.
    """

    status: int | None
    times: int
    method: str = ".*"
    path: str = ".*"
    after: bool = False
    then: Callable[[], None] | None = None
    headers: tuple[str, ...] = ()
    passed: int = 0
    met: int = 0
    answered: threading.Event = field(default_factory=threading.Event, repr=False)  # a request that met it
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def meets(self, method: str, path: str, headers: dict[str, str]) -> bool:
        if not (re.fullmatch(self.method, method) and re.search(self.path, path)):
            return False
        if self.headers and not headers.keys() & set(self.headers):
            return False
        with self.lock:
            if self.passed:
                self.passed -= 1
                return False
            if self.met >= self.times:
                return False
            self.met += 1
            first = self.met == 1
        if first and self.then is not None:
            self.then()
        return True


class S3Proxy:
    """Listens on its own port. ``requests`` are all that came, as ``(method, path)``, and ``headers``
    theirs, with names in lower case."""

    def __init__(self, upstream: int) -> None:
        self.upstream = upstream
        self.requests: list[tuple[str, str]] = []
        self.headers: list[dict[str, str]] = []
        self.deaf_to: tuple[str, ...] = ()  # headers that the server never gets to see
        self._faults: list[Fault] = []
        proxy = self

        class Handler(_Handler):
            pass

        Handler.proxy = proxy
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, name="s3-proxy", daemon=True)
        self._thread.start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @contextmanager
    def failing(
        self,
        status: int | None = 500,
        times: int = 1_000_000,
        *,
        method: str = ".*",
        path: str = ".*",
        after: bool = False,
        then: Callable[[], None] | None = None,
        headers: tuple[str, ...] = (),
        passed: int = 0,
    ) -> Iterator[Fault]:
        """Fail matching requests while the block runs."""
        fault = Fault(status, times, method, path, after, then, headers, passed)
        self._faults.append(fault)
        try:
            yield fault
        finally:
            self._faults.remove(fault)

    def fault_for(self, method: str, path: str, headers: dict[str, str]) -> Fault | None:
        return next((fault for fault in list(self._faults) if fault.meets(method, path, headers)), None)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    proxy: S3Proxy
    protocol_version = "HTTP/1.1"
    timeout = 60

    def handle_one_request(self) -> None:
        with suppress(ConnectionError, TimeoutError):
            super().handle_one_request()
            return
        self.close_connection = True

    def log_message(self, format: str, *arguments: object) -> None:
        """Tests have logs enough."""

    def _pass_on(self) -> None:
        self.proxy.requests.append((self.command, self.path))
        told = {name.lower(): value for name, value in self.headers.items()}
        self.proxy.headers.append(told)
        body = self._body()
        fault = self.proxy.fault_for(self.command, self.path, told)
        try:
            self._answer(body, fault)
        finally:
            if fault is not None:
                fault.answered.set()

    def _answer(self, body: bytes, fault: Fault | None) -> None:
        if fault is not None and not fault.after:
            self._fail(fault)
            return
        dropped = (*_NOT_PASSED_ON, *self.proxy.deaf_to)
        headers = {k: v for k, v in self.headers.items() if k.lower() not in dropped}
        headers["Content-Length"] = str(len(body))
        upstream = http.client.HTTPConnection("127.0.0.1", self.proxy.upstream, timeout=60)
        try:
            upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in headers.items():
                upstream.putheader(name, value)
            upstream.endheaders(body)
            answer = upstream.getresponse()
            content = answer.read()
        except (OSError, http.client.HTTPException):  # the server is down: so are we
            self._cut()
            return
        finally:
            upstream.close()
        if fault is not None:
            self._fail(fault)
            return
        self.send_response_only(answer.status, answer.reason)
        for name, value in answer.getheaders():
            if name.lower() not in (*_NOT_PASSED_ON, "content-length"):
                self.send_header(name, value)
        length = answer.getheader("Content-Length") if self.command == "HEAD" else None
        self.send_header("Content-Length", length or str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _pass_on  # the names http.server calls

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        pieces = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            pieces.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(pieces)

    def _fail(self, fault: Fault) -> None:
        if fault.status is None:
            self._cut()
            return
        code = _ERRORS.get(fault.status, "InternalError")
        text = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>as the test asked</Message></Error>"
        self.send_response_only(fault.status)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", "0" if self.command == "HEAD" else str(len(text)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text.encode())

    def _cut(self) -> None:
        self.close_connection = True
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)


@contextmanager
def proxied(upstream: int) -> Iterator[S3Proxy]:
    """A proxy before the server on that port, closed at the end."""
    proxy = S3Proxy(upstream)
    try:
        yield proxy
    finally:
        proxy.close()
