"""Masks secrets in everything that a person or a log may see; also for `ematix_flow`.

Three layers: names that sound secret, the password part of any URL, and the very values that were read from a
secret place in this process.
"""

from __future__ import annotations

import errno
import os
import re
import threading
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

MASK = "***"

_WORDS = (
    "password|passwd|pwd|secret|token|api[_-]?key|secret[_-]access[_-]key|access[_-]?key|account[_-]?key"
    "|authorization"
)
# userinfo may hold any character but "@" before the last "@" of the authority
# every repeat is bounded, so that a hostile text cannot make the search slow
_URL_PASSWORD = re.compile(
    r"(?<![A-Za-z0-9+.\-])(?P<head>[A-Za-z][A-Za-z0-9+.\-]{0,30}://[^/\s:@'\"]{0,255}:)(?P<pw>[^\s\"]{1,1024})@"
)
_KEYWORD_PASSWORD = re.compile(
    rf"(?P<head>\b\w{{0,40}}(?:{_WORDS})\s*[=:]\s*(?:bearer\s+|basic\s+)?)"
    r"(?P<pw>'[^']*'|\"[^\"]*\"|(?:\\.|[^\s,;&)'\"\\])+)",
    re.IGNORECASE,
)
# in JSON, or in the repr of a dict: the quotes stay
_QUOTED_PASSWORD = re.compile(
    rf"(?P<head>\b\w{{0,40}}(?:{_WORDS})[\"']\s*:\s*)(?P<q>[\"'])(?P<pw>(?:\\.|(?!(?P=q))[^\\])+)(?P=q)",
    re.IGNORECASE,
)
# advice: "export DB_PASSWORD=…", "${DB_PASSWORD:-…}"
_GAP = re.compile(r"(?P<q>['\"]?)-?(?:…|\.{3})(?P=q)\}{0,2}\.?")
# "/etc/passwd: File exists" is a file name and a system error, not a password
_PATH_BEFORE = re.compile(r"(?:^|[\s'\"(=])/(?:[^/\s:]{1,255}/){0,40}$")
_SYSTEM_ERROR_TEXTS = tuple(sorted({os.strerror(number).lower() for number in errno.errorcode}))
_SECRET_NAME = re.compile(r"(?i)(?:^|_)(?:password|passwd|pwd|secret|token|key|credentials)(?:_|$)|password$")
# a variable with the name of a secret may hold a common word: to mask it would damage many messages
_COMMON_WORD = re.compile(r"(?:[a-z]+|[A-Z]+|\d+|[A-Z][a-z]+)")
_LONGEST_WORD = 11

_remembered: set[str] = set()
_lock = threading.Lock()


def mask(text: str) -> str:
    """The text with URL passwords, ``password=…`` pairs and remembered values replaced by ``***``."""
    if _remembered:
        with _lock:
            known = sorted(_remembered, key=len, reverse=True)
        for value in known:
            text = text.replace(value, MASK)
    if ":" not in text and "=" not in text:
        return text  # a password always follows one of these characters
    text = _URL_PASSWORD.sub(lambda m: f"{m['head']}{MASK}@", text)
    text = _QUOTED_PASSWORD.sub(
        lambda m: m[0] if m["pw"].startswith("${") else f"{m['head']}{m['q']}{MASK}{m['q']}", text
    )
    return _KEYWORD_PASSWORD.sub(lambda m: m[0] if _is_harmless(m) else f"{m['head']}{MASK}", text)


def _is_harmless(found: re.Match[str]) -> bool:
    """Whether the text after the word is a reference, a gap to fill in, or a system error about a file of
    that name."""
    if found["pw"].startswith("${") or _GAP.fullmatch(found["pw"]):
        return True
    text, following = found.string, found.string[found.start("pw") : found.start("pw") + 80].lower()
    return (
        found["head"].endswith(": ")
        and following.startswith(_SYSTEM_ERROR_TEXTS)
        and _PATH_BEFORE.search(text[max(0, found.start() - 1024) : found.start()]) is not None
    )


def mask_all(value: Any) -> Any:
    """The value with every text in it masked."""
    if isinstance(value, str):
        return mask(value)
    if isinstance(value, Mapping):
        return {mask(str(name)): mask_all(each) for name, each in value.items()}
    return [mask_all(each) for each in value] if isinstance(value, (list, tuple)) else value


def remember_secret(value: str) -> None:
    """Mask this value in every later text. Short values are ignored: they would mask normal words."""
    if len(value) >= 4:
        with _lock:
            _remembered.add(value)


def remember_password(value: str) -> None:
    """Mask this value in every later text, unless it may be a common word, as ``postgres`` is."""
    is_word = len(value) <= _LONGEST_WORD and _COMMON_WORD.fullmatch(value) is not None
    if len(value) >= 6 and not is_word:
        remember_secret(value)


def remember_secret_variables(variables: Mapping[str, str]) -> None:
    """Mask the values of variables that are called like a secret, and the passwords of URLs in others."""
    for name, value in variables.items():
        if "://" in value:
            try:
                value = unquote(urlsplit(value).password or "")
            except ValueError:
                continue
        elif not _SECRET_NAME.search(name):
            continue
        if not os.path.isabs(value):
            remember_password(value)
