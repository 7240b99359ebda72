"""Small servers in the test process that receive alerts: over HTTP, working or faulty, and over SMTP."""

from __future__ import annotations

import json
import socket
import socketserver
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Posted:
    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Receiver:
    """An HTTP server that answers each request by the next of ``behaviours``, the last for ever."""

    port: int
    behaviours: list[str]
    posted: list[Posted] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)

    @property
    def host(self) -> str:
        return f"localhost:{self.port}"


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.0"

    def do_POST(self) -> None:
        receiver = self.server.receiver
        body = self.rfile.read(int(self.headers["Content-Length"]))
        receiver.posted.append(Posted(self.path, dict(self.headers), body))
        number = min(len(receiver.posted), len(receiver.behaviours)) - 1
        getattr(self, f"_{receiver.behaviours[number].replace(' ', '_')}")(receiver)

    def _ok(self, receiver: Receiver) -> None:
        self._status(200)

    def _answers_500(self, receiver: Receiver) -> None:
        self._status(500, b"out of order")

    def _answers_404(self, receiver: Receiver) -> None:
        self._status(404, b"no_team")

    def _redirects(self, receiver: Receiver) -> None:
        self.send_response(307)
        self.send_header("Location", f"http://127.0.0.1:{receiver.port}/elsewhere")
        self.end_headers()

    def _hangs(self, receiver: Receiver) -> None:
        receiver.over.wait(30)

    def _closes(self, receiver: Receiver) -> None:
        return

    def _closes_mid_answer(self, receiver: Receiver) -> None:
        self.wfile.write(b"HTTP/1.")

    def _never_ends(self, receiver: Receiver) -> None:
        self.wfile.write(b"HTTP/1.1 500 No\r\n\r\n")
        while not receiver.over.wait(0.01):
            self.wfile.write(b"x" * 1000)

    def _drips(self, receiver: Receiver) -> None:
        self.wfile.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
        while not receiver.over.wait(0.05):
            self.wfile.write(b"x")

    def _status(self, code: int, body: bytes = b"") -> None:
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        return


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    receiver: Receiver

    def handle_error(self, request: Any, client_address: Any) -> None:
        return  # a client that has had enough


@contextmanager
def http_receiver(*behaviours: str) -> Iterator[Receiver]:
    server = _Server(("127.0.0.1", 0), _Handler)
    server.receiver = Receiver(server.server_address[1], list(behaviours) or ["ok"])
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server.receiver
    finally:
        server.receiver.over.set()
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def refusing_port() -> Iterator[int]:
    """A port without a listener, reserved so that no other process gets it."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


@dataclass
class MailServer:
    port: int
    refuses: str | None = None  # the command that it answers with 550
    tls: ssl.SSLContext | None = None  # it has STARTTLS; with ``implicit`` nothing else from the start
    implicit: bool = False
    mails: list[str] = field(default_factory=list)
    recipients: list[str] = field(default_factory=list)
    logins: list[str] = field(default_factory=list)
    heard_plain: list[str] = field(default_factory=list)  # what an eavesdropper could read


class _Mail(socketserver.StreamRequestHandler):
    server: _MailServer

    def handle(self) -> None:
        mail, encrypted = self.server.mail, False
        if mail.tls is not None and mail.implicit:
            encrypted = self._encrypt(mail.tls)
        self._say("220 here")
        while line := self.rfile.readline().decode().strip():
            command, _, rest = line.partition(" ")
            if not encrypted:
                mail.heard_plain.append(line)
            if mail.refuses == command.upper():
                self._say(f"550 not for you: {line}")
            elif command.upper() == "EHLO":
                more = "" if mail.tls is None or encrypted else "250-STARTTLS\r\n"
                self._say(f"250-here\r\n{more}250 AUTH PLAIN")
            elif command.upper() == "STARTTLS" and mail.tls is not None:
                self._say("220 go on")
                encrypted = self._encrypt(mail.tls)
            elif command.upper() == "AUTH":
                mail.logins.append(rest)
                self._say("235 welcome")
            elif command.upper() == "DATA":
                self._say("354 go on")
                lines = []
                while (text := self.rfile.readline().decode().rstrip("\r\n")) != ".":
                    lines.append(text)
                mail.mails.append("\n".join(lines))
                self._say("250 taken")
            elif command.upper() == "QUIT":
                self._say("221 bye")
                return
            else:
                if command.upper() == "RCPT":
                    mail.recipients.append(rest)
                self._say("250 well")

    def _encrypt(self, tls: ssl.SSLContext) -> bool:
        self.connection = tls.wrap_socket(self.connection, server_side=True)
        self.rfile, self.wfile = self.connection.makefile("rb"), self.connection.makefile("wb", 0)
        return True

    def finish(self) -> None:
        super().finish()
        self.connection.close()

    def _say(self, text: str) -> None:
        self.wfile.write(f"{text}\r\n".encode())


class _MailServer(socketserver.ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False
    mail: MailServer

    def handle_error(self, request: Any, client_address: Any) -> None:
        return  # a client that does not trust it


@contextmanager
def mail_server(
    refuses: str | None = None,
    tls: ssl.SSLContext | None = None,
    implicit: bool = False,
    host: str = "127.0.0.1",
) -> Iterator[MailServer]:
    """Accepts mail and any login: unencrypted, after STARTTLS, or encrypted from the start."""
    server = _MailServer((host, 0), _Mail)
    server.mail = MailServer(server.server_address[1], refuses, tls, implicit)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server.mail
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
