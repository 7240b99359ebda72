"""Masks secrets in everything that a person or a log may see.

Three layers: field names that sound secret, the password part of any URL, and the very values that
were read from a secret place in this process. `mask` is applied to every error and log line.
"""

from __future__ import annotations

import errno
import os
import re
import threading

from ematix_probe import redaction as probe_redaction

MASK = "***"

_SECRET_SEGMENTS = frozenset({"password", "passwd", "pwd", "secret", "token", "key", "credentials"})
_PUBLIC_FIELDS = frozenset(
    {"message_key_column", "partition_key_prefix", "primary_key", "key_field", "natural_key"}
)
# userinfo may hold any character but "@" before the last "@" of the authority
# every repeat is bounded, so that a hostile text cannot make the search slow
_URL_PASSWORD = re.compile(
    r"(?<![A-Za-z0-9+.\-])(?P<head>[A-Za-z][A-Za-z0-9+.\-]{0,30}://[^/\s:@'\"]{0,255}:)(?P<pw>[^\s\"]{1,1024})@"
)
_KEYWORD_PASSWORD = re.compile(
    r"(?P<head>\b\w{0,40}(?:password|passwd|pwd|secret|token|api_key|secret_access_key)\s*[=:]\s*)"
    r"(?P<pw>'[^']*'|\"[^\"]*\"|(?:\\.|[^\s,;&)'\"\\])+)",
    re.IGNORECASE,
)
# in JSON, or in the repr of a dict: the quotes stay
_QUOTED_PASSWORD = re.compile(
    r"""(?P<head>\b\w{0,40}(?:password|passwd|pwd|secret|token|api_key|secret_access_key)["']\s*:\s*)"""
    r"""(?P<q>["'])(?P<pw>(?:\\.|(?!(?P=q))[^\\])+)(?P=q)""",
    re.IGNORECASE,
)
# "/etc/passwd: File exists" is a file name and a system error, not a password
_PATH_BEFORE = re.compile(r"(?:^|[\s'\"(=])/(?:[^/\s:]{1,255}/){0,40}$")
_SYSTEM_ERROR_TEXTS = tuple(sorted({os.strerror(number).lower() for number in errno.errorcode}))
_REFERENCE = re.compile(r"^\$\{[^}]*\}$")

_remembered: set[str] = set()
_lock = threading.Lock()


def is_secret_field(name: str) -> bool:
    """Whether a field of this name holds a secret (``password``, ``sasl_password``, ``PGPASSWORD``, …)."""
    if name in _PUBLIC_FIELDS:
        return False
    parts = name.lower().split("_")
    return any(part in _SECRET_SEGMENTS or part.endswith("password") for part in parts)


def remember_secret(value: str) -> None:
    """Mask this value in every later text, also in those of probes. Short values are ignored, because they
    would mask normal words."""
    if len(value) >= 4:
        with _lock:
            _remembered.add(value)
        probe_redaction.remember_secret(value)


def mask(text: str) -> str:
    """The text with URL passwords, ``password=…`` pairs and remembered values replaced."""
    for value in sorted(_remembered, key=len, reverse=True):
        text = text.replace(value, MASK)
    if ":" not in text and "=" not in text:
        return text  # a password always follows one of these characters
    text = _URL_PASSWORD.sub(lambda m: f"{m['head']}{MASK}@", text)
    text = _QUOTED_PASSWORD.sub(
        lambda m: m[0] if m["pw"].startswith("${") else f"{m['head']}{m['q']}{MASK}{m['q']}", text
    )
    return _KEYWORD_PASSWORD.sub(lambda m: m[0] if _is_harmless(m) else f"{m['head']}{MASK}", text)


def _is_harmless(found: re.Match[str]) -> bool:
    """Whether the text after the word is a reference, or a system error about a file of that name."""
    if found["pw"].startswith("${"):
        return True
    text, following = found.string, found.string[found.start("pw") : found.start("pw") + 80].lower()
    return (
        found["head"].endswith(": ")
        and following.startswith(_SYSTEM_ERROR_TEXTS)
        and _PATH_BEFORE.search(text[max(0, found.start() - 1024) : found.start()]) is not None
    )


def mask_field(name: str, value: object) -> object:
    """The value of a connection's field as it may be shown: ``${VAR}`` references stay readable."""
    if value is None or not isinstance(value, str) or value == "":
        return value
    if is_secret_field(name):
        return value if _REFERENCE.match(value) else MASK
    return mask(value)
