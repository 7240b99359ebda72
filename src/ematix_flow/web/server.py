"""Runs the application with uvicorn until it is asked to stop. Owns where it may listen."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

import uvicorn

from ematix_flow.errors import ConfigError, UsageError
from ematix_flow.web.access import Access, Tokens, fresh_tokens
from ematix_flow.web.app import WebApp
from ematix_flow.web.guard import App, Guard
from ematix_flow.web.site import Site
from ematix_flow.web.static_files import StaticFiles

_GRACE_SECONDS = 10
_MOST_CONNECTIONS = 1_000


@dataclass(frozen=True)
class Binding:
    """Where the server listens, and by which names and with which scheme browsers call it."""

    host: str
    port: int
    tls_cert: Path | None = None
    tls_key: Path | None = None
    behind_proxy: str | None = None  # the address that the proxy serves
    allowed_hosts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if (self.tls_cert is None) is not (self.tls_key is None):
            raise UsageError("TLS needs both --tls-cert and --tls-key")
        for file in (self.tls_cert, self.tls_key):
            if file is not None and not file.is_file():
                raise ConfigError(f"there is no file {file}")
        if self.behind_proxy is not None:
            found = urlsplit(self.behind_proxy)
            if found.scheme != "https" or not found.hostname or found.path not in ("", "/"):
                raise UsageError(
                    f"--behind-proxy takes the address that the proxy serves, not {self.behind_proxy!r}",
                    next_step="--behind-proxy https://flow.example.com",
                )

    @property
    def is_loopback(self) -> bool:
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host.strip("[]")).is_loopback
        except ValueError:
            return False

    @property
    def has_tls(self) -> bool:
        return self.tls_cert is not None

    @property
    def scheme(self) -> str:
        return "https" if self.has_tls else "http"

    @property
    def public_origin(self) -> str | None:
        return None if self.behind_proxy is None else self.behind_proxy.rstrip("/")

    @property
    def hosts(self) -> frozenset[str]:
        """The names in a Host header that are ours."""
        names = {"localhost", *(name.lower() for name in self.allowed_hosts)}
        if self.behind_proxy is not None:
            names.add((urlsplit(self.behind_proxy).hostname or "").lower())
        if not self.is_loopback:
            names |= {socket.gethostname().lower(), "*"}  # any address: a rebound name is none
            if self.host not in ("0.0.0.0", "::", ""):
                names.add(self.host.lower())
        return frozenset(names)

    def check(self, tokens: Tokens) -> None:
        """Refuse to be reachable from elsewhere without a token, or with a token in plain text."""
        if self.is_loopback:
            return
        if tokens.operator is None and tokens.reader is None:
            raise UsageError(
                f"--host {self.host} can be reached from other machines, and no token is set",
                state="nothing was started",
                next_step="set EMATIX_FLOW_WEB_TOKEN, or give --token-file",
            )
        if not self.has_tls and self.behind_proxy is None:
            raise UsageError(
                f"--host {self.host} can be reached from other machines, and there is no TLS: tokens would "
                "be readable on the way",
                state="nothing was started",
                next_step="give --tls-cert and --tls-key, or --behind-proxy https://NAME if a proxy has TLS",
            )


class Application(Protocol):
    """What a server serves, and how requests that would wait end when the server stops."""

    @property
    def asgi(self) -> App: ...

    def prepare_stop(self) -> None: ...


class HttpServer:
    """Serves one application behind the guard. ``origin`` is where clients reach it."""

    def __init__(
        self,
        make_app: Callable[[Access], Application],
        binding: Binding,
        tokens: Tokens,
        user: str = "operator",
    ) -> None:
        """``user`` is who started it: an operator with a fresh token is this person."""
        binding.check(tokens)
        if tokens.operator is None and binding.is_loopback:
            tokens = fresh_tokens(tokens.reader)
        operator_name = user if tokens.is_fresh else "operator"
        self._binding, self.tokens = binding, tokens
        self._socket = _listen(binding)
        self.port = int(self._socket.getsockname()[1])
        is_secure = binding.has_tls or binding.behind_proxy is not None
        cookie = "__Host-ematix-flow" if is_secure else f"ematix-flow-{self.port}"
        access = Access(tokens, cookie, is_secure, operator_name)
        self._app = make_app(access)
        guard = Guard(self._app.asgi, access, binding.hosts, binding.scheme, binding.public_origin)
        self._config = uvicorn.Config(
            guard,
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            ws="none",
            lifespan="on",
            h11_max_incomplete_event_size=32 * 1024,
            limit_concurrency=_MOST_CONNECTIONS,
            timeout_keep_alive=30,
            timeout_graceful_shutdown=_GRACE_SECONDS,
            ssl_certfile=binding.tls_cert,
            ssl_keyfile=binding.tls_key,
        )

    @property
    def origin(self) -> str:
        if self._binding.public_origin is not None:
            return self._binding.public_origin
        host = "localhost" if self._binding.host in ("0.0.0.0", "::", "") else self._binding.host
        host = f"[{host}]" if ":" in host and not host.startswith("[") else host
        return f"{self._binding.scheme}://{host}:{self.port}"

    def run(self, stop: threading.Event, started: threading.Event | None = None) -> None:
        """Serve until the event is set."""
        server = _StoppableServer(self._config, self._app, stop, started)
        try:
            asyncio.run(server.serve([self._socket]))
        finally:
            self._socket.close()

    def close(self) -> None:
        """Give the port back without having served."""
        self._socket.close()


class WebServer(HttpServer):
    """The server of one site. ``address`` is what a person opens.

    If a fresh token was made, the address has a code that begins one session. Behind a proxy it has none: the
    proxy, and who reads its log, would see it.
    """

    app: WebApp
    address: str

    def __init__(
        self,
        site: Site,
        binding: Binding,
        tokens: Tokens,
        static: StaticFiles | None = None,
        user: str = "operator",
    ) -> None:
        def make_app(access: Access) -> WebApp:
            self.app = WebApp(site, access, static=static)
            return self.app

        super().__init__(make_app, binding, tokens, user)
        has_code = self.tokens.is_fresh and binding.behind_proxy is None
        self.address = f"{self.origin}/" + (f"?code={self.app.access.make_code()}" if has_code else "")


class _StoppableServer(uvicorn.Server):
    """Stops when an event is set: the command handles signals itself."""

    def __init__(
        self,
        config: uvicorn.Config,
        app: Application,
        stop: threading.Event,
        is_started: threading.Event | None,
    ) -> None:
        super().__init__(config)
        self._app, self._stop, self._is_started = app, stop, is_started

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def on_tick(self, counter: int) -> bool:
        if self._is_started is not None:
            self._is_started.set()
        if self._stop.is_set():
            self._app.prepare_stop()  # else the shutdown would wait for them
            return True
        return await super().on_tick(counter)


def _listen(binding: Binding) -> socket.socket:
    host = binding.host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sends each part of an answer at once only over sockets that name their protocol: 40 ms otherwise
    opened = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind((host, binding.port))
        opened.listen(256)
    except OSError as error:
        opened.close()
        raise ConfigError(
            f"cannot listen on {binding.host}:{binding.port}: {error.strerror or error}",
            next_step="give another --port; 0 takes a free one",
        ) from error
    opened.set_inheritable(False)
    return opened
