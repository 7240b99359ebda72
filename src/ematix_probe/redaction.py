"""Masks passwords, tokens and remembered secrets in texts that people see."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

_WORDS = "password|passwd|pwd|secret|token|api[_-]?key|access[_-]?key|account[_-]?key|authorization"
# every repeat is bounded, so that a hostile text cannot make the search slow
_URL_PASSWORD = re.compile(
    r"(?P<head>[a-zA-Z][\w+.-]{0,30}://[^\s/:@'\"]{0,255}):(?P<secret>[^\s\"]{1,1024})@"
)
_NAMED_SECRET = re.compile(
    rf"(?P<head>\b\w{{0,40}}(?:{_WORDS})\s*[=:]\s*(?:bearer\s+|basic\s+)?)"
    r"(?P<secret>'[^']*'|\"[^\"]*\"|[^\s,;&)'\"]+)",
    re.IGNORECASE,
)
_QUOTED_SECRET = re.compile(  # in JSON, or in the repr of a dict: the quotes stay
    rf"(?P<head>\b\w{{0,40}}(?:{_WORDS})[\"']\s*:\s*)(?P<quote>[\"'])(?P<secret>(?:\\.|(?!(?P=quote))[^\\])+)(?P=quote)",
    re.IGNORECASE,
)
_SECRET_NAME = re.compile(r"(?i)(?:^|_)(?:password|passwd|pwd|secret|token|key|credentials)(?:_|$)|password$")
# a variable with the name of a secret may hold a common word: to mask it would damage many messages
_COMMON_WORD = re.compile(r"(?:[a-z]+|[A-Z]+|\d+|[A-Z][a-z]+)")
_LONGEST_WORD = 11

_remembered: set[str] = set()
_lock = threading.Lock()


def mask(text: str) -> str:
    """The text with remembered secrets, passwords of URLs and of ``password=…`` replaced by ``***``."""
    if _remembered:
        with _lock:
            known = sorted(_remembered, key=len, reverse=True)
        for value in known:
            text = text.replace(value, "***")
    if ":" not in text and "=" not in text:
        return text  # a password follows one of these characters
    text = _URL_PASSWORD.sub(r"\g<head>:***@", text)
    text = _QUOTED_SECRET.sub(r"\g<head>\g<quote>***\g<quote>", text)
    return _NAMED_SECRET.sub(r"\g<head>***", text)


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
        is_word = len(value) <= _LONGEST_WORD and _COMMON_WORD.fullmatch(value) is not None
        if len(value) >= 6 and not is_word and not os.path.isabs(value):
            remember_secret(value)
