"""Writes control characters as their codes: a text of the data must not move the cursor or forge a line.

Also for `ematix_flow`. Other characters stay, because scripts need some invisible ones: Persian has joiners.
"""

from __future__ import annotations

import re

from ematix_probe.redaction import mask

# controls, marks that change the direction of a text, separators of lines and paragraphs, and lone surrogates
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def escape_controls(text: str, *, keep: str = "") -> str:
    """The text with control characters as codes, such as ``\\x1b``, apart from those to keep."""
    return _CONTROLS.sub(lambda found: found[0] if found[0] in keep else _code(found[0]), text)


def mask_and_escape(text: str, *, keep: str = "") -> str:
    """The text without secrets, and with control characters as codes.

    In this order: a secret of several lines, such as a private key, is no longer found once they are codes.
    """
    return escape_controls(mask(text), keep=keep)


def _code(character: str) -> str:
    return character.encode("unicode_escape", "replace").decode()
