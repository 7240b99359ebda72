"""Who may do what: tokens, the code of the printed address, sessions, and the limit on wrong tokens.

A right token always opens the server: the limit only refuses wrong ones, so nobody can lock others out.
A session is a signed value, so it survives a restart of the server as long as the token is the same.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from pathlib import Path

from ematix_flow.errors import ConfigError, UsageError
from ematix_flow.web.endpoints import Role, Viewer
from ematix_probe.redaction import remember_secret

TOKEN_VARIABLE = "EMATIX_FLOW_WEB_TOKEN"
READER_VARIABLE = "EMATIX_FLOW_WEB_READER_TOKEN"
SHORTEST_TOKEN = 16
SESSION_SECONDS = 12 * 3600
_WRONG_TOKENS, _WRONG_SECONDS = 20, 60.0
_LONGEST_TOKEN = 4096


@dataclass(frozen=True)
class Tokens:
    """The tokens that open the server. ``is_fresh``: the operator's was made now, for this process."""

    operator: str | None
    reader: str | None = None
    is_fresh: bool = False

    def __post_init__(self) -> None:
        given = [token for token in (self.operator, self.reader) if token is not None]
        for token in given:
            remember_secret(token)
        if len(set(given)) != len(given):
            raise ConfigError(
                "the operator's and the reader's token are the same", next_step="give two tokens"
            )


def find_tokens(
    env: Mapping[str, str], token: str | None, token_file: Path | None, reader_file: Path | None
) -> Tokens:
    """The tokens of the options, else of the environment; none if none is given."""
    operator = _given_token(token, token_file, env.get(TOKEN_VARIABLE), "--token", TOKEN_VARIABLE)
    reader = _given_token(None, reader_file, env.get(READER_VARIABLE), "--reader-token", READER_VARIABLE)
    return Tokens(operator, reader)


def fresh_tokens(reader: str | None = None) -> Tokens:
    return Tokens(secrets.token_urlsafe(32), reader, is_fresh=True)


def _given_token(
    token: str | None, file: Path | None, variable: str | None, option: str, name: str
) -> str | None:
    if token is not None and file is not None:
        raise UsageError(f"give {option} or {option}-file, not both")
    place = option
    if file is not None:
        place = str(file)
        try:
            token = file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"the token file {file} cannot be read: {error}") from error
    elif token is None:
        token, place = variable, name
    if token is None or (token == "" and place == name):
        return None
    if len(token) < SHORTEST_TOKEN or len(token) > _LONGEST_TOKEN or not token.isascii():
        raise ConfigError(
            f"the token of {place} has {len(token)} characters: it needs {SHORTEST_TOKEN} or more, of ASCII",
            next_step="python -c 'import secrets; print(secrets.token_urlsafe(32))'  makes one",
        )
    return token


@dataclass
class Access:
    """Knows the tokens, and who a request is from."""

    tokens: Tokens
    cookie: str  # its name
    is_secure: bool  # whether browsers may send the cookie over TLS alone
    operator_name: str = "operator"  # in the audit of actions
    _wrong: deque[float] = field(default_factory=lambda: deque(maxlen=_WRONG_TOKENS))
    _code: str | None = None  # that begins one session

    def viewer_of_token(self, given: str) -> Viewer | None:
        """Who has this token. A comparison takes the same time for every token."""
        found: Role | None = None
        for role, token in self._by_role():
            if hmac.compare_digest(_digest(given), _digest(token)):
                found = role
        return None if found is None else self._viewer(found)

    def _viewer(self, role: Role) -> Viewer:
        return Viewer(role, self.operator_name if role == "operator" else role)

    def viewer(self, headers: Mapping[str, str]) -> tuple[Viewer | None, bool]:
        """Who sends the request, and whether a cookie says so, which a browser sends by itself."""
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return self.viewer_of_token(given.strip()[:_LONGEST_TOKEN]), False
        return self._viewer_of_cookie(headers.get("cookie", "")), True

    def is_one_too_many(self) -> bool:
        """Count a token that was compared and is wrong. Whether too many were wrong within a minute."""
        now, wrong = time.monotonic(), self._wrong
        if len(wrong) == _WRONG_TOKENS and now - wrong[0] < _WRONG_SECONDS:
            return True
        wrong.append(now)
        return False

    def make_code(self) -> str:
        """A code for the printed address. It begins one session of the operator."""
        self._code = secrets.token_urlsafe(32)
        return self._code

    def use_code(self, given: str) -> Viewer | None:
        """Who begins a session by this code, which is worth nothing from then on."""
        code = self._code
        if code is None or not hmac.compare_digest(_digest(given), _digest(code)):
            return None
        self._code = None
        return self._viewer("operator")

    # ------------------------------------------------------------------ sessions

    def session_cookie(self, viewer: Viewer) -> str:
        """The value of ``Set-Cookie`` that begins a session."""
        token = dict(self._by_role())[viewer.role]
        until = f"{viewer.role}.{int(time.time()) + SESSION_SECONDS}"
        return self._cookie(f"{until}.{_signature(token, until)}", SESSION_SECONDS)

    def ended_cookie(self) -> str:
        return self._cookie("", 0)

    def _cookie(self, value: str, seconds: int) -> str:
        secure = "; Secure" if self.is_secure else ""
        return f"{self.cookie}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}"

    def _viewer_of_cookie(self, header: str) -> Viewer | None:
        try:
            morsel = SimpleCookie(header[:16_384]).get(self.cookie)
        except CookieError:
            return None
        if morsel is None:
            return None
        role, _, rest = morsel.value.partition(".")
        until, _, signature = rest.partition(".")
        found: Viewer | None = None
        for known, token in self._by_role():
            expected = _signature(token, f"{known}.{until}")
            if hmac.compare_digest(signature.encode(), expected.encode()) and known == role:
                found = self._viewer(known)
        is_over = not until.isdecimal() or int(until[:15]) < time.time()
        return None if is_over else found

    def _by_role(self) -> list[tuple[Role, str]]:
        given: list[tuple[Role, str | None]] = [
            ("operator", self.tokens.operator),
            ("reader", self.tokens.reader),
        ]
        return [(role, token) for role, token in given if token is not None]


def _digest(text: str) -> bytes:
    """Of equal length for every token, so that a comparison does not tell the length."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()


def _signature(token: str, text: str) -> str:
    key = hmac.new(token.encode(), b"ematix-flow web session", hashlib.sha256).digest()
    made = hmac.new(key, text.encode("utf-8", "replace"), hashlib.sha256).digest()
    return base64.urlsafe_b64encode(made).decode().rstrip("=")
