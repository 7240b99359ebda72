"""Masks passwords and tokens in texts that people see."""

from __future__ import annotations

import re

_URL_PASSWORD = re.compile(r"(?P<head>[a-zA-Z][\w+.-]*://[^\s/:@]*):(?P<secret>[^\s/]*)@")
_NAMED_SECRET = re.compile(
    r"(?i)\b(?P<head>(?:password|passwd|pwd|secret|token|api[_-]?key|secret_access_key|authorization)"
    r"\s*[=:]\s*(?:bearer\s+|basic\s+)?)(?P<secret>'[^']*'|\"[^\"]*\"|[^\s,;&'\"]+)"
)


def mask(text: str) -> str:
    """The text with passwords of URLs and of ``password=…`` replaced by ``***``."""
    return _NAMED_SECRET.sub(r"\g<head>***", _URL_PASSWORD.sub(r"\g<head>:***@", text))
