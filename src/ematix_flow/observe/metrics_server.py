"""The small HTTP server of a scheduler or a stream: ``/metrics``, and further pages that it is given.

It only answers GET requests, on few threads, and no request changes anything.
"""

from __future__ import annotations

import errno
import json
import logging
import socket
import socketserver
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from prometheus_client.exposition import choose_encoder

from ematix_flow.errors import ConfigError

if TYPE_CHECKING:
    from prometheus_client.registry import Collector

Answers = Mapping[str, Callable[[], tuple[bool, Any]]]  # by path: whether all is well, and the JSON body

MAX_CLIENTS = 16
CLIENT_TIMEOUT_SECONDS = 10.0  # for a client that connects and sends or reads nothing

_log = logging.getLogger(__name__)


class MetricsServer:
    """Answers requests from its creation until `close`. ``port`` is the one it listens on."""

    def __init__(
        self,
        numbers: Collector,
        host: str,
        port: int,
        path: str = "/metrics",
        answers: Answers | None = None,
    ) -> None:
        self._server = _start_server(_ServedContent(numbers, path, answers or {}), host, port)
        self.host = host
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(
            target=self._server.serve_forever,
            kwargs={"poll_interval": 0.1},
            name="ematix-flow-metrics",
            daemon=True,
        )
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    def close(self) -> None:
        """Stop listening, without waiting for open requests."""
        if self._thread.is_alive():
            self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> MetricsServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True)
class _ServedContent:
    numbers: Collector
    path: str
    answers: Answers


class _MetricsHttpServer(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = MAX_CLIENTS

    def __init__(self, address: tuple[str, int], content: _ServedContent) -> None:
        self.shown = content
        self._room = threading.BoundedSemaphore(MAX_CLIENTS)
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        # not HTTPServer's, which asks a name server who this machine is
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        _log.debug("a request of %s was not answered", client_address, exc_info=True)


class _MetricsHttpServerIPv6(_MetricsHttpServer):
    address_family = socket.AF_INET6


class _Handler(BaseHTTPRequestHandler):
    server: _MetricsHttpServer
    timeout = CLIENT_TIMEOUT_SECONDS
    server_version = "ematix-flow"
    sys_version = ""

    def do_GET(self) -> None:
        path, content = self.path.partition("?")[0], self.server.shown
        if path == content.path:
            encode, kind = choose_encoder(self.headers.get("Accept", ""))
            self._answer(HTTPStatus.OK, encode(content.numbers), kind)
        elif path in content.answers:
            well, body = content.answers[path]()
            self._answer_json(HTTPStatus.OK if well else HTTPStatus.SERVICE_UNAVAILABLE, body)
        else:
            self._answer_json(HTTPStatus.NOT_FOUND, {"paths": [content.path, *content.answers]})

    do_HEAD = do_GET

    def _answer_json(self, status: HTTPStatus, value: Any) -> None:
        text = json.dumps(value, ensure_ascii=False, indent=1) + "\n"
        self._answer(status, text.encode("utf-8"), "application/json; charset=utf-8")

    def _answer(self, status: HTTPStatus, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        _log.debug(format, *args)


def _start_server(content: _ServedContent, host: str, port: int) -> _MetricsHttpServer:
    if not 0 <= port <= 65535:
        raise ConfigError(f"{port} is not a port", next_step="give one of 1 to 65535, or 0 for any free port")
    try:
        return (_MetricsHttpServerIPv6 if ":" in host else _MetricsHttpServer)((host, port), content)
    except (OSError, UnicodeError) as error:
        raise _cannot_listen_error(host, port, error) from error


def _cannot_listen_error(host: str, port: int, error: OSError | UnicodeError) -> ConfigError:
    number = getattr(error, "errno", None)
    if number == errno.EADDRINUSE:
        what, step = "another process listens there", "choose another port, or 0 for any that is free"
    elif number in (errno.EACCES, errno.EPERM):
        what, step = "this user may not", "choose a port of 1024 or more"
    else:
        what, step = getattr(error, "strerror", None) or str(error), "give an address of this machine as host"
    return ConfigError(
        f"metrics cannot be shown at {host}:{port}: {what}",
        state="nothing has begun",
        next_step=step,
    )
