"""An HTTP request as a value: what a load probe sends, with its templates. Nothing is sent from here."""

from __future__ import annotations

import base64
import dataclasses
import json as json_text
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import SplitResult, urlsplit

from ematix_probe.environment import REFERENCE, resolve
from ematix_probe.errors import DeclarationError
from ematix_probe.load.checks import (
    Check,
    ContainsCheck,
    FunctionCheck,
    JsonCheck,
    StatusCheck,
    needs_body,
    read_checks,
)
from ematix_probe.load.feeders import Feeder, feed
from ematix_probe.load.templates import (
    TemplateError,
    as_text,
    check_header,
    columns_of,
    columns_of_json,
    encode_for_url,
)
from ematix_probe.location import caller_location
from ematix_probe.redaction import mask, remember_secret
from ematix_probe.unknown_options import refuse_unknown_options

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
REPEATABLE = frozenset({"GET", "HEAD", "PUT", "DELETE", "OPTIONS"})
BODY_CHECKS = (StatusCheck, ContainsCheck, JsonCheck, FunctionCheck)


@dataclass(frozen=True)
class Auth:
    """Credentials: texts with ``${NAME}`` references, which are replaced when the load begins."""

    kind: Literal["basic", "bearer"]
    user: str = ""
    secret: str = field(default="", repr=False)

    def header(self, where: str | None) -> str:
        secret = resolve(self.secret, where)
        remember_secret(secret)
        if self.kind == "bearer":
            return f"Bearer {secret}"
        pair = f"{resolve(self.user, where)}:{secret}"
        return f"Basic {base64.b64encode(pair.encode()).decode()}"


def bearer(token: str) -> Auth:
    """A token, as in ``auth=bearer("${API_TOKEN}")``."""
    return Auth("bearer", secret=_reference("bearer()", token))


def basic(user: str, password: str) -> Auth:
    """A user and a password, as in ``auth=basic("load", "${LOAD_PASSWORD}")``."""
    if not isinstance(user, str):
        raise _wrong(f"basic() takes texts, not {user!r}")
    return Auth("basic", user, _reference("basic()", password))


@dataclass(frozen=True)
class HttpTarget:
    """One request, sent many times. Its repr shows no URL, header or body: they may hold secrets."""

    method: str
    url: str = field(repr=False)
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    query: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    json: Any = field(default=None, repr=False)
    form: tuple[tuple[str, str], ...] | None = field(default=None, repr=False)
    body: str | bytes | None = field(default=None, repr=False)
    auth: Auth | None = None
    cookies: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    keep_cookies: bool = False
    follow_redirects: bool = False
    keep_alive: bool = True
    http2: bool = False
    verify: bool = True
    ca_file: Path | None = None
    checks: tuple[Check, ...] = ()
    feeder: Feeder | None = None
    where: str | None = field(default=None, compare=False, repr=False)
    fixed_headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)  # of a resolved target

    kind = "http"

    @property
    def label(self) -> str:
        return f"{self.method} {mask(self.url)}"

    @property
    def parts(self) -> SplitResult:
        return urlsplit(resolve_url(self.url, self.where))

    @property
    def has_status_check(self) -> bool:
        return any(isinstance(each, StatusCheck) for each in self.checks)

    @property
    def needs_body(self) -> bool:
        return needs_body(self.checks)

    def resolved(self) -> HttpTarget:
        """The target with the references to the environment replaced, and credentials as a header."""

        def pairs(given: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
            return tuple((name, resolve(value, self.where)) for name, value in given)

        # the value of a variable is never a template, even if it has braces
        fixed = pairs((name, value) for name, value in self.headers if not columns_of(value))
        if self.auth is not None:
            fixed = (*fixed, ("Authorization", self.auth.header(self.where)))
        for name, value in fixed:
            try:
                check_header(value)
            except TemplateError as error:
                raise DeclarationError(f"http(headers=): {name}: {error}", where=self.where) from None
        url = resolve_url(self.url, self.where)
        check_url(url, self.where)
        return dataclasses.replace(
            self,
            url=url,
            headers=pairs((name, value) for name, value in self.headers if columns_of(value)),
            fixed_headers=fixed,
            auth=None,
            query=pairs(self.query),
            cookies=pairs(self.cookies),
        )


@refuse_unknown_options("http()")
def http(
    method: str,
    url: str,
    *,
    headers: Mapping[str, str] | None = None,
    query: Mapping[str, Any] | Sequence[tuple[str, Any]] | None = None,
    json: Any = None,
    form: Mapping[str, Any] | Sequence[tuple[str, Any]] | None = None,
    body: str | bytes | None = None,
    auth: Auth | None = None,
    cookies: Mapping[str, str] | None = None,
    keep_cookies: bool = False,
    follow_redirects: bool = False,
    keep_alive: bool = True,
    http2: bool = False,
    verify: bool = True,
    ca_file: str | Path | None = None,
    checks: Iterable[Any] = (),
    feeder: Any = None,
) -> HttpTarget:
    """A request for a load probe. ``{column}`` in it is replaced by the feeder's rows.

    ``keep_cookies=True`` lets each virtual user send back the cookies that it got. Redirects are answers like
    others unless ``follow_redirects=True``, and are never followed to another host.
    """
    where = caller_location()
    if not isinstance(method, str) or method.upper() not in METHODS:
        raise DeclarationError(f"http() knows the methods {', '.join(METHODS)}, not {method!r}", where=where)
    if sum(each is not None for each in (json, form, body)) > 1:
        raise DeclarationError("http() takes one of json=, form= and body=", where=where)
    if body is not None and not isinstance(body, (str, bytes)):
        raise DeclarationError(f"http(body=) takes a text or bytes, not {body!r}", where=where)
    if auth is not None and not isinstance(auth, Auth):
        raise DeclarationError(
            "http(auth=) takes credentials that refer to the environment",
            where=where,
            next_step='write  auth=bearer("${API_TOKEN}")  or  auth=basic("user", "${PASSWORD}")',
        )
    switches: dict[str, Any] = {
        "keep_cookies": keep_cookies,
        "follow_redirects": follow_redirects,
        "keep_alive": keep_alive,
        "http2": http2,
        "verify": verify,
    }
    for name, switch in switches.items():
        if not isinstance(switch, bool):
            raise DeclarationError(f"http({name}=) is True or False, not {switch!r}", where=where)
    target = HttpTarget(
        method.upper(),
        url,
        headers=_headers(headers, where),
        query=_pairs("query", query, where) or (),
        json=json,
        form=_pairs("form", form, where),
        body=body,
        auth=auth,
        cookies=_pairs("cookies", cookies, where) or (),
        checks=read_checks(checks, BODY_CHECKS, where),
        feeder=None if feeder is None else feed(feeder),
        ca_file=_ca_file(ca_file, where),
        where=where,
        **switches,
    )
    _check_url(target)
    _check_json(target)
    _check_columns(target)
    return target


def _check_url(target: HttpTarget) -> None:
    where, url = target.where, target.url
    if not isinstance(url, str) or any(char.isspace() or not char.isprintable() for char in url):
        raise DeclarationError(f"http() takes a URL without blanks, not {url!r}", where=where)
    if REFERENCE.search(url):
        return  # checked again when the load begins
    check_url(url, where)


def resolve_url(url: str, where: str | None) -> str:
    """The URL with its references replaced; values after the host are percent-encoded, as those of a feeder.

    A value that is the whole URL, or that stands in its beginning up to the host and port, stays as it is.
    """

    def encode(value: str, found: re.Match[str]) -> str:
        before = REFERENCE.sub("", url[: found.start()]).partition("://")
        is_after_host = any(char in (before[2] if before[1] else before[0]) for char in "/?#")
        if not is_after_host:
            return value
        encoded = encode_for_url(value)
        if mask(value) != value:  # a secret stays one in this form
            remember_secret(encoded)
        return encoded

    return resolve(url, where, encode)


def check_url(url: str, where: str | None) -> None:
    """DeclarationError unless the URL names a scheme, a host and a port that exist."""
    shown = mask(url)
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise DeclarationError(f"http() cannot read the URL {shown!r}: {error}", where=where) from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise DeclarationError(
            f"http() takes a URL that begins with http:// or https:// and a host, not {shown!r}", where=where
        )
    if port == 0:
        raise DeclarationError(f"http(): the port 0 of {shown!r} is no port", where=where)
    if "{" in parts.netloc or "}" in parts.netloc:
        raise DeclarationError(
            f"http(): the host of {shown!r} takes no column: hosts must be known before the first request",
            where=where,
        )
    if parts.username or parts.password:
        raise DeclarationError(
            "http() takes no user or password in the URL",
            where=where,
            next_step='write  auth=basic("user", "${PASSWORD}")',
        )


def _check_json(target: HttpTarget) -> None:
    if target.json is None:
        return
    try:
        json_text.dumps(target.json, allow_nan=False, default=str)
    except (TypeError, ValueError) as error:
        raise DeclarationError(f"http(json=) takes a JSON value: {error}", where=target.where) from None


def _check_columns(target: HttpTarget) -> None:
    """Columns that the feeder does not have, and columns without a feeder."""
    parts = "" if REFERENCE.search(target.url) else target.url
    needed = columns_of(parts) | columns_of_json([value for _, value in target.headers])
    if target.feeder is None:
        if columns_of(parts):
            raise DeclarationError(
                f"http(): the URL has {{{min(columns_of(parts))}}}, and there is no feeder=",
                where=target.where,
            )
        return
    needed |= columns_of_json(target.json)
    known = target.feeder.columns
    missing = sorted(needed - set(known)) if known is not None else []
    if missing:
        raise DeclarationError(
            f"http(): the feeder has no column {missing[0]!r}; it has {', '.join(known or ())}",
            where=target.where,
        )


def _headers(given: Any, where: str | None) -> tuple[tuple[str, str], ...]:
    pairs = _pairs("headers", given, where) or ()
    for name, value in pairs:
        if (
            not name
            or not all(char.isalnum() or char in "!#$%&'*+-.^_`|~" for char in name)
            or not name.isascii()
        ):
            raise DeclarationError(f"http(headers=): {name!r} is no name of a header", where=where)
        if name.lower() in ("host", "content-length", "transfer-encoding", "connection", "cookie"):
            raise DeclarationError(
                f"http(headers=): {name} is set by the probe itself",
                where=where,
                next_step="use cookies= or keep_alive=" if name.lower() in ("cookie", "connection") else None,
            )
        try:
            check_header(value)
        except TemplateError as error:
            raise DeclarationError(f"http(headers=): {name}: {error}", where=where) from None
    return pairs


def _pairs(option: str, given: Any, where: str | None) -> tuple[tuple[str, str], ...] | None:
    if given is None:
        return None
    items = list(given.items()) if isinstance(given, Mapping) else given
    if isinstance(items, (str, bytes)) or not isinstance(items, Sequence):
        raise DeclarationError(f"http({option}=) takes a mapping, not {given!r}", where=where)
    pairs = []
    for item in items:
        if not isinstance(item, (tuple, list)) or len(item) != 2 or not isinstance(item[0], str):
            raise DeclarationError(
                f"http({option}=) takes pairs of a name and a value, not {item!r}", where=where
            )
        values = item[1] if isinstance(item[1], (list, tuple)) and option in ("query", "form") else [item[1]]
        pairs += [(item[0], as_text(value)) for value in values]
    return tuple(pairs)


def _ca_file(given: Any, where: str | None) -> Path | None:
    if given is None:
        return None
    path = Path(given).absolute()
    if not path.is_file():
        raise DeclarationError(f"http(ca_file=): there is no file {str(given)!r}", where=where)
    return path


def _reference(what: str, secret: Any) -> str:
    if not isinstance(secret, str) or not REFERENCE.search(secret):
        raise DeclarationError(
            f"{what} takes a reference to the environment, so that no secret stands in the code",
            where=caller_location(),
            next_step='write it as  "${API_TOKEN}"',
        )
    return secret


def _wrong(what: str) -> DeclarationError:
    return DeclarationError(what, where=caller_location())
