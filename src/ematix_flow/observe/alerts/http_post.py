"""Posts JSON to an HTTP address: verified TLS, no redirects, one retry, no secrets of the URL in errors."""

from __future__ import annotations

import http.client
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from ematix_flow._version import __version__
from ematix_flow.errors import ConfigError
from ematix_flow.observe.alerts.alerter import SEND_SECONDS, AlertNotSent

_PAUSE_SECONDS = 0.3
_RETRIED_STATUSES = (429, 500, 502, 503, 504)
_LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})
_ANSWER_BYTES = 200


def is_local(host: str) -> bool:
    return host in _LOCAL or host.endswith(".localhost")


def check_address(url: str, shown: str, *, insecure: bool = False) -> None:
    """Raise ConfigError unless alerts may go to this URL: HTTP only on this machine or with ``insecure``."""
    pieces = urlsplit(url)
    try:
        port = pieces.port
    except ValueError:
        port = 0
    if not pieces.hostname or any(mark in pieces.hostname for mark in "%*_ "):
        raise ConfigError(f"the alerter {shown} names no host", next_step="write it as https://host/path")
    if port == 0:
        raise ConfigError(f"the alerter {shown} has an invalid port", next_step="give one of 1 to 65535")
    if pieces.username or pieces.password:
        raise ConfigError(
            f"the alerter {shown} has a user name or password, which webhooks do not use",
            next_step="put the receiver's token into the path or the query, as a ${VARIABLE}",
        )
    if pieces.scheme != "https" and not insecure and not is_local(pieces.hostname):
        raise ConfigError(
            f"the alerter {shown} would be sent unencrypted",
            next_step="use https, or append insecure=1 where the network is trusted",
        )


def post_json(url: str, body: bytes, headers: Mapping[str, str] | None = None) -> None:
    """Post the body; raises AlertNotSent unless the server accepts it.

    Retries once if that may help, in the same time.
    """
    deadline = time.monotonic() + SEND_SECONDS
    all_headers = {
        "Content-Type": "application/json",
        "User-Agent": f"ematix-flow/{__version__}",
        **(headers or {}),
    }
    request = urllib.request.Request(url, data=body, headers=all_headers, method="POST")
    problem = _try_post(request, deadline)
    if problem is not None and problem.may_retry and deadline - time.monotonic() > 2 * _PAUSE_SECONDS:
        time.sleep(_PAUSE_SECONDS)
        problem = _try_post(request, deadline)
    if problem is not None:
        raise AlertNotSent(problem.what)


class _PostProblem:
    def __init__(self, what: str, again: bool) -> None:
        self.what, self.may_retry = what, again


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Refuses redirects: a checked address must not lead to an unchecked one."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


_opener = urllib.request.build_opener(_NoRedirects)


def _try_post(request: urllib.request.Request, deadline: float) -> _PostProblem | None:
    seconds = max(0.1, deadline - time.monotonic())
    try:
        with _opener.open(request, timeout=seconds):  # only the status of the answer matters
            return None
    except urllib.error.HTTPError as error:
        with error:
            answer = _answer_text(error)
        return _PostProblem(
            f"it answers {error.code} {error.reason}{answer}", error.code in _RETRIED_STATUSES
        )
    except urllib.error.URLError as error:
        timed_out = isinstance(error.reason, TimeoutError)
        return _PostProblem("no answer in time" if timed_out else f"{error.reason}", not timed_out)
    except TimeoutError:
        return _PostProblem("no answer in time", False)
    except (OSError, http.client.HTTPException) as error:
        return _PostProblem(f"{type(error).__name__}: {error}", True)


def _answer_text(error: urllib.error.HTTPError) -> str:
    try:
        found = error.read(_ANSWER_BYTES).decode("utf-8", "replace").strip()
    except (OSError, http.client.HTTPException, ValueError):
        return ""
    return f": {found.splitlines()[0]}" if found else ""
