"""Replaces ``${NAME}``, ``${env:NAME}`` and ``${NAME:-default}`` by variables of the environment."""

from __future__ import annotations

import os
import re
from collections.abc import Callable

from ematix_probe.errors import DeclarationError

REFERENCE = re.compile(r"\$\{(?:env:)?(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?\}")


def resolve(
    text: str, where: str | None = None, encode: Callable[[str, re.Match[str]], str] | None = None
) -> str:
    """The text with its references replaced; DeclarationError for a variable that is not set.

    ``encode`` gets each value and its reference, and returns what is put in its place.
    """

    def value(found: re.Match[str]) -> str:
        given = os.environ.get(found["name"], found["default"])
        if given is None:
            raise DeclarationError(
                f"the environment has no variable {found['name']!r}",
                where=where,
                next_step=f"set it, as in  export {found['name']}=…",
            )
        return given if encode is None else encode(given, found)

    return REFERENCE.sub(value, text)


def secrets_in(text: str) -> list[str]:
    """The values of the references that are set: what no report or message may show."""
    found = [os.environ.get(match["name"], "") for match in REFERENCE.finditer(text)]
    return [value for value in found if len(value) >= 4]
