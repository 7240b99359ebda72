"""The guard in front of every request: host, origin, who asks, sizes, and the headers of every answer.

It wraps the application, so that no route can be reached around it.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from ematix_flow.errors import FlowError, UsageError
from ematix_flow.web.access import Access
from ematix_flow.web.answers import error_bytes

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

BASE = "/api/v1"
TOOLS_PATH = "/mcp"  # of  flow mcp --http
MAX_BODY_BYTES = 64 * 1024
REQUESTED_WITH = "ematix-flow"
CONTENT_POLICY = (
    "default-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
)
_SAFE_METHODS = ("GET", "HEAD")
_HEADERS = [
    (b"content-security-policy", CONTENT_POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
]


class NotAllowed(FlowError):
    """The request is refused by the guard."""


@dataclass(frozen=True)
class Guard:
    """Lets a request through to ``app`` if its host, its origin and its sender are allowed."""

    app: App
    access: Access
    hosts: frozenset[str]  # names by which browsers may call the server; any address is allowed too
    scheme: str
    public_origin: str | None = None  # of the stated proxy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        refused = self._refusal(scope, headers)
        secured = _with_headers(send, is_api=_is_api(scope))
        if refused is not None:
            await _answer(secured, *refused)
            return
        await self.app(scope, _limited(receive), secured)

    def _refusal(self, scope: Scope, headers: dict[str, str]) -> tuple[int, FlowError] | None:
        """The status and the error of a request that is not let through."""
        if not self._is_host_allowed(headers.get("host", "")):
            shown = headers.get("host", "")[:200]
            step = "open the address that  flow web  printed, or give --allow-host"
            return 403, NotAllowed(f"the host {shown!r} is not a name of this server", next_step=step)
        is_foreign = is_from_another_site(headers)
        origin = headers.get("origin")
        if origin is not None and not self._is_same_origin(origin, headers["host"]):
            return 403, NotAllowed(f"requests from {origin[:200]!r} are not allowed")
        size = headers.get("content-length", "0")
        if not size.isdecimal() or int(size[:15]) > MAX_BODY_BYTES:
            return 413, NotAllowed(
                f"a body of {size[:15]} bytes is too large: {MAX_BODY_BYTES:,} are allowed"
            )
        if not _is_api(scope):
            return None
        if is_foreign:
            return 403, NotAllowed("requests from other sites are not allowed")
        viewer, by_cookie = self.access.viewer(headers)
        is_login = scope["path"] == f"{BASE}/session" and scope["method"] == "POST"
        if viewer is None and not is_login:
            if "authorization" in headers and self.access.is_one_too_many():
                return 429, NotAllowed("too many wrong tokens", next_step="try again in a minute")
            step = "open the address that  flow web  printed, or send  Bearer TOKEN  in Authorization"
            return 401, NotAllowed("no valid token was sent", next_step=step)
        if scope["method"] not in _SAFE_METHODS and (by_cookie or is_login):
            if headers.get("x-requested-with") != REQUESTED_WITH:
                return 403, NotAllowed(f"the header X-Requested-With: {REQUESTED_WITH} is missing")
            if origin is None:
                return 403, NotAllowed("the header Origin is missing")
        scope["viewer"] = viewer
        return None

    def _is_host_allowed(self, host: str) -> bool:
        """An attack by DNS rebinding calls us by a name of the attacker, never by an address."""
        name = _host_name(host)
        if name is None:
            return False
        if name in self.hosts:
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        return address.is_loopback or "*" in self.hosts

    def _is_same_origin(self, origin: str, host: str) -> bool:
        return origin in (f"{self.scheme}://{host}", self.public_origin)


def is_from_another_site(headers: Mapping[str, str]) -> bool:
    """Whether a browser says that a page of another site made it send the request."""
    return headers.get("sec-fetch-site") in ("cross-site", "same-site")


def _host_name(host: str) -> str | None:
    """The name or address in a Host header; None if it has none."""
    try:
        found = urlsplit(f"//{host}")
        _ = found.port
    except ValueError:
        return None
    is_plain = found.username is None and not found.path and not found.query and not found.fragment
    return found.hostname.rstrip(".") if is_plain and found.hostname else None


def _is_api(scope: Scope) -> bool:
    return str(scope["path"]).startswith(("/api", TOOLS_PATH))


def _limited(receive: Receive) -> Receive:
    """Ends a body that is longer than allowed, also if its headers give another length."""
    received = 0

    async def receive_limited() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > MAX_BODY_BYTES:
            raise BodyTooLarge(f"a body has more than {MAX_BODY_BYTES:,} bytes")
        return message

    return receive_limited


class BodyTooLarge(UsageError):
    """A body is longer than allowed."""


def _with_headers(send: Send, *, is_api: bool) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            own = [*message["headers"]]
            if is_api and not any(name.lower() == b"cache-control" for name, _ in own):
                own.append((b"cache-control", b"no-store"))
            message = {**message, "headers": [*own, *_HEADERS]}
        await send(message)

    return send_with_headers


async def _answer(send: Send, status: int, error: FlowError) -> None:
    body = error_bytes(error)
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if status == 429:
        headers.append((b"retry-after", b"60"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
