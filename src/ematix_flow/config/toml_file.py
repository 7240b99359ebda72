"""Reads a TOML file and knows the line of each key, for errors."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ematix_flow.errors import ConfigError
from ematix_flow.spec.location import SourceLocation

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_HEADER = re.compile(r"\s*\[{1,2}(?P<keys>[^\[\]]+)\]{1,2}\s*(?:#.*)?$")
_ENTRY = re.compile(r"""\s*(?P<keys>(?:[\w-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[\w-]+|"[^"]*"|'[^']*'))*)\s*=""")
_KEY = re.compile(r"""[\w-]+|"[^"]*"|'[^']*'""")
_LINE = re.compile(r"\(?at line (\d+)")


@dataclass(frozen=True)
class TomlFile:
    """The tables of a file; empty when it does not exist."""

    path: Path
    exists: bool = False
    tables: dict[str, Any] = field(default_factory=dict)
    text: str = ""

    def where(self, *keys: str) -> SourceLocation:
        """The line of this key, or of the nearest enclosing table that has a line.

        A table of an array has its index in the path: ``where("targets", "1", "mode")``.
        """
        declared = dict(_declarations(self.text))
        for end in range(len(keys), 0, -1):
            prefix = keys[:end]
            lines = [line for path, line in declared.items() if path[:end] == prefix]
            if lines:
                return SourceLocation(str(self.path), min(lines))
        return SourceLocation(str(self.path), 1)


def read_toml(path: Path) -> TomlFile:
    """Read the file; a missing file is empty. Raises ConfigError with the line of a syntax error."""
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return TomlFile(path)
    except UnicodeDecodeError:
        raise ConfigError(f"{path.name} is not UTF-8 text", where=SourceLocation(str(path), 1)) from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    return parse_toml(text, path)


def parse_toml(text: str, path: Path) -> TomlFile:
    """Parse a text. ``path`` is its name in errors. Raises ConfigError like `read_toml`."""
    try:
        return TomlFile(path, True, tomllib.loads(text), text)
    except tomllib.TOMLDecodeError as error:
        found = _LINE.search(str(error))
        line = int(found[1]) if found else 1
        what = _LINE.split(str(error))[0].strip().rstrip("(").strip()
        raise ConfigError(
            f"{path.name} is not valid TOML: {what}", where=SourceLocation(str(path), line)
        ) from None


def _declarations(text: str) -> list[tuple[tuple[str, ...], int]]:
    """Each table header and key with its line, last first so that the first wins in a dict."""
    table: tuple[str, ...] = ()
    arrays: dict[tuple[str, ...], int] = {}
    found: list[tuple[tuple[str, ...], int]] = []
    closing: str | None = None
    for number, line in enumerate(text.splitlines(), start=1):
        if closing is not None:  # within a text of several lines, which may look like anything
            closing = None if closing in line else closing
            continue
        header, entry = _HEADER.match(line), _ENTRY.match(line)
        if header:
            table = _with_array_positions(_keys(header["keys"]), arrays, new=line.lstrip().startswith("[["))
            found.append((table, number))
        elif entry:
            found.append((table + _keys(entry["keys"]), number))
            closing = _open_multiline_quotes(line[entry.end() :])
    return found[::-1]


def _with_array_positions(
    keys: tuple[str, ...], arrays: dict[tuple[str, ...], int], *, new: bool
) -> tuple[str, ...]:
    """The path of a header, with the index of each array table in it."""
    if new:
        arrays[keys] = arrays.get(keys, -1) + 1
    path: list[str] = []
    for end, key in enumerate(keys, start=1):
        path.append(key)
        if keys[:end] in arrays:
            path.append(str(arrays[keys[:end]]))
    return tuple(path)


def _open_multiline_quotes(value: str) -> str | None:
    """The quotes that close the multi-line string that begins here; None when none begins."""
    for quotes in ('"""', "'''"):
        if value.strip().startswith(quotes) and value.count(quotes) == 1:
            return quotes
    return None


def _keys(dotted: str) -> tuple[str, ...]:
    return tuple(key.strip("\"'") for key in _KEY.findall(dotted))
