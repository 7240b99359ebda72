"""The code blocks of a page and what is to be done with each.

A fenced block may have a directive right above it, as an HTML comment on its own line:

``<!-- file: pipelines.py -->``    the block is the content of that file
``<!-- not run: needs root -->``   the block is shown only, for the reason given
``<!-- exits: 2 -->``              the command is meant to fail, with that exit code

A block inside an HTML comment is run as well: this is how a page prepares what it requires of its reader.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

RUNNABLE = frozenset({"python", "sh", "console", "toml"})
ALIASES = {"py": "python", "bash": "sh", "shell": "sh"}

_FENCE = re.compile(r"^(?P<indent> *)(?P<ticks>`{3,}|~{3,})\s*(?P<language>[\w+-]*)")
_DIRECTIVE = re.compile(r"^\s*<!--\s*(?P<name>file|not run|exits):(?P<value>.*?)-->\s*$")


class PageError(Exception):
    """A page breaks the convention above."""


@dataclass(frozen=True)
class Block:
    """One block; ``line`` is the line of its opening fence."""

    line: int
    language: str
    code: str
    file: str | None = None
    not_run: str | None = None
    exits: int = 0

    @property
    def runs(self) -> bool:
        return self.language in RUNNABLE and self.not_run is None

    @property
    def commands(self) -> str:
        """What a shell is given: of a console block the lines after ``$ ``, with their continuations."""
        if self.language != "console":
            return self.code
        commands: list[str] = []
        continued = False
        for line in self.code.splitlines():
            if line.startswith("$ "):
                commands.append(line[2:])
            elif continued:
                commands.append(line.removeprefix("> "))
            else:
                continue  # what the command printed
            continued = line.endswith("\\")
        return "\n".join(commands) + "\n"


def blocks_of(text: str) -> list[Block]:
    """Every block of the page, in order. Raises PageError where the page breaks the convention."""
    return list(_blocks(text.splitlines()))


def _blocks(lines: list[str]) -> Iterator[Block]:
    directive: tuple[int, str, str] | None = None
    number = 0
    while number < len(lines):
        line = lines[number]
        number += 1
        found = _DIRECTIVE.match(line)
        fence = _FENCE.match(line)
        if found:
            directive = (number, found["name"], found["value"].strip())
        elif fence:
            start, body = number, []
            while number < len(lines) and not _closes(lines[number], fence["ticks"]):
                body.append(lines[number])
                number += 1
            if number == len(lines):
                raise PageError(f"line {start}: this block is never closed")
            number += 1
            language = ALIASES.get(fence["language"], fence["language"])
            yield _block(start, language, textwrap.dedent("\n".join(body)) + "\n", directive)
            directive = None
        elif line.strip() and directive:
            raise PageError(f"line {directive[0]}: no code block follows this directive")
    if directive:
        raise PageError(f"line {directive[0]}: no code block follows this directive")


def _closes(line: str, ticks: str) -> bool:
    stripped = line.strip()
    return len(stripped) >= len(ticks) and set(stripped) == {ticks[0]}


def _block(line: int, language: str, code: str, directive: tuple[int, str, str] | None) -> Block:
    if directive is None:
        return Block(line, language, code)
    number, name, value = directive
    if not value:
        raise PageError(f"line {number}: '{name}:' says nothing")
    if name == "file":
        path = PurePosixPath(value)
        if path.is_absolute() or ".." in path.parts:
            raise PageError(f"line {number}: {value} lies outside the page's folder")
        return Block(line, language, code, file=value)
    if name == "not run":
        return Block(line, language, code, not_run=value)
    if not value.isdigit():
        raise PageError(f"line {number}: an exit code is a number, not {value!r}")
    return Block(line, language, code, exits=int(value))
