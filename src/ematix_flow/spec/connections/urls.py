"""Parses connection URLs, even with a password that is not percent-encoded, and masks them.

The user ends at the first ``:`` and the password at the last ``@``, so that a password may hold any
character. A ``${…}`` reference is opaque: its content never splits a URL.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import unquote

from ematix_flow.spec.connections.references import (
    REFERENCE,
    ExpandedText,
    holds_secret,
    mask_secret,
    split_default,
)
from ematix_probe.redaction import MASK

# an "@" after "?" belongs to the query only if drivers know every parameter of the query
_QUERY_PARAMETERS = re.compile(
    "user|password|passfile|host|hostaddr|port|dbname|database|schema|search_path|role|warehouse|options|service"
    "|ssl[a-z_]*|application_name|fallback_application_name|connect_timeout|client_encoding|charset|unix_socket"
    "|target_session_attrs|channel_binding|gssencmode|keepalives[a-z_]*|format|region|location|endpoint|prefix"
    "|group_id|client_id|credentials_path|access_key_id|secret_access_key|session_token"
)
_HOST = r"(?:\[[^\]@]*\]|[^:/?@\[\]]*)(?::\d*)?"
_ADDRESS = re.compile(rf"{_HOST}(?:,{_HOST})*(?:/.*)?", re.DOTALL)
_CONNINFO = re.compile(r"\s*[A-Za-z_]+\s*=")
_CONNINFO_PAIR = re.compile(r"\s*([A-Za-z_]+)(\s*=\s*)('(?:[^'\\]|\\.)*'|(?:[^\s'\\]|\\.)*)", re.DOTALL)


@dataclass(frozen=True, repr=False)
class UrlPieces:
    """The pieces of a URL as written, percent signs included. ``password`` is None when there is none."""

    scheme: str
    user: str | None
    password: str | None
    address: str
    path: str
    query: str | None

    def __repr__(self) -> str:
        return f"UrlPieces({self.masked()!r})"

    @property
    def parameters(self) -> tuple[tuple[str, str], ...]:
        """The query's names and decoded values, in order."""
        pairs = (_split(pair, "=", 1) for pair in _split(self.query or "", "&") if pair)
        return tuple((unquote(pair[0]), unquote("".join(pair[1:]))) for pair in pairs)

    @property
    def hosts(self) -> tuple[tuple[str, str], ...]:
        """Each host with its port as text, empty when not given."""
        return tuple(_split_host(entry) for entry in _split(self.address, ",")) if self.address else ()

    @property
    def location(self) -> str:
        """Everything between the scheme and the query, for URLs with a path and no server."""
        user = "" if self.user is None else self.user
        password = "" if self.password is None else f":{self.password}"
        return f"{user}{password}{'' if self.user is None else '@'}{self.address}{self.path}"

    def masked(self) -> str:
        """The URL with ``***`` for its passwords."""
        out = f"{self.scheme}://" if self.scheme else ""
        if self.user is not None:
            password = "" if self.password is None else ":" + mask_secret(self.password)
            out += f"{self.user}{password}@{self.address}"
        else:
            # an invalid port may be a password whose "@host" was forgotten
            out += ",".join(
                entry if _plausible_port(_split_host(entry)[1]) else f"{_split_host(entry)[0]}:{MASK}"
                for entry in _split(self.address, ",")
            )
        out += self.path
        if self.query is not None:
            out += "?" + "&".join(_masked_parameter(pair) for pair in _split(self.query, "&"))
        return out


def split_url(url: str) -> UrlPieces:
    """The pieces of ``scheme://user:password@host:port/path?query``; every piece may be missing."""
    text, references = _hide_references(url)
    scheme, separator, rest = text.partition("://")
    if not separator:
        scheme, rest = "", text
    head, query = _cut_query(rest)
    userinfo, at, address = head.rpartition("@")
    if at and "/" in userinfo.partition(":")[0]:  # a path with an "@", not a user
        at, address = "", head
    user, colon, password = userinfo.partition(":")
    host, slash, path = address.partition("/")
    return UrlPieces(
        scheme=_restore_references(scheme.lower(), references, url),
        user=_restore_references(user, references, url) if at else None,
        password=_restore_references(password, references, url) if at and colon else None,
        address=_restore_references(host, references, url),
        path=_restore_references(slash + path, references, url),
        query=None if query is None else _restore_references(query, references, url),
    )


def mask_url(url: str) -> str:
    """The URL without its password, nor the passwords in its query or in the default of a reference."""
    if is_conninfo(url):
        return _mask_conninfo(url)
    shown = split_url(url).masked()
    return shown if isinstance(url, ExpandedText) else REFERENCE.sub(_masked_default, shown)


def is_conninfo(text: str) -> bool:
    """Whether this is PostgreSQL's ``host=… dbname=…`` form."""
    return bool(_CONNINFO.match(text))


def parse_conninfo(text: str) -> dict[str, str]:
    """The names and values of PostgreSQL's ``host=… password='it''s'`` form. Raises ValueError."""
    found: dict[str, str] = {}
    position = 0
    while position < len(text.rstrip()):
        match = _CONNINFO_PAIR.match(text, position)
        if match is None:
            raise ValueError(f"character {position + 1} is not the start of a name=value pair")
        value = match[3]
        if value.startswith("'"):
            value = value[1:-1]
        found[match[1].lower()] = re.sub(r"\\(.)", r"\1", value, flags=re.DOTALL)
        position = match.end()
    return found


def _cut_query(rest: str) -> tuple[str, str | None]:
    last_at = rest.rfind("@")
    for position in (i for i, char in enumerate(rest[: last_at + 1]) if char == "?"):
        before, query = rest[:position], rest[position + 1 :]
        names = [pair.partition("=")[0] for pair in query.split("&")]
        if all(map(_QUERY_PARAMETERS.fullmatch, names)) and _ADDRESS.fullmatch(before.rpartition("@")[2]):
            return before, query
    head, mark, query = rest[last_at + 1 :].partition("?")
    return rest[: last_at + 1] + head, query if mark else None


def _split_host(entry: str) -> tuple[str, str]:
    if entry.startswith("["):
        host, _, port = entry[1:].partition("]")
        return host, port.removeprefix(":")
    parts = _split(entry, ":", 1)
    return parts[0], "".join(parts[1:])


def _plausible_port(port: str) -> bool:
    return port == "" or port.isdigit() or bool(REFERENCE.fullmatch(port))


def _masked_parameter(pair: str) -> str:
    name, *value = _split(pair, "=", 1)
    return f"{name}={mask_secret(value[0])}" if value and holds_secret(name) else pair


def _mask_conninfo(text: str) -> str:
    try:
        parse_conninfo(text)
    except ValueError:
        return MASK  # it is unknown where the password begins and ends
    return _CONNINFO_PAIR.sub(_masked_conninfo_pair, text)


def _masked_conninfo_pair(match: re.Match[str]) -> str:
    if not holds_secret(match[1]):
        return match[0]
    return match[0][: match.start(3) - match.start()] + mask_secret(match[3])


def _masked_default(match: re.Match[str]) -> str:
    name, default = split_default(match[1])
    return match[0] if not default or default == MASK else f"${{{name}:-{mask_url(default)}}}"


def _split(text: str, separator: str, times: int = -1) -> list[str]:
    """Like ``text.split``, but does not split inside references."""
    hidden, references = _hide_references(text)
    return [_restore_references(part, references, text) for part in hidden.split(separator, times)]


def _hide_references(url: str) -> tuple[str, dict[str, str]]:
    if isinstance(url, ExpandedText):
        return str(url), {}
    unused = _unused_characters(url)
    references: dict[str, str] = {}

    def hide(match: re.Match[str]) -> str:
        character = next(unused)
        references[character] = match[0]
        return character

    return REFERENCE.sub(hide, url), references


def _unused_characters(text: str) -> Iterator[str]:
    return (character for character in map(chr, range(0xE000, 0xF8FF)) if character not in text)


def _restore_references(piece: str, references: dict[str, str], origin: str) -> str:
    for character, reference in references.items():
        piece = piece.replace(character, reference)
    return ExpandedText(piece) if isinstance(origin, ExpandedText) else piece
