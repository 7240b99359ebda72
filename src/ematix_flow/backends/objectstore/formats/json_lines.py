"""Finds JSON lines that Spark would misread without an error, and the line at fault.

Spark reads half of a surrogate pair as a question mark, a whole number among fractions as a double, and 1e400
as infinity. It drops an empty key and everything after the first value of a line. A quick scan of the text
looks for all of these; suspicious files are then checked line by line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ematix_flow.backends.objectstore.formats.compression import is_hadoop_codec, open_decompressed
from ematix_flow.backends.objectstore.formats.csv_headers import not_utf8_error, unreadable_text_error
from ematix_flow.backends.objectstore.layout.source_files import SourceFile
from ematix_flow.errors import SourceFailed

ONE_A_LINE = "each line is one object; an array over several lines becomes such lines by  jq -c '.[]'"
EXACT_DIGITS = 15  # a whole number of more may not be exact as a double
_NO_KEY, _NAME_IT = "has an object with a key that is empty", "give the key a name"
_RENAME = "give one of them another name"
_LONGEST_NAME = 50_000  # what Spark's parser takes

# an escape that may be half a pair; after a backslash that is escaped itself it is none, and hides others
HALF_PAIR = (
    r"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    r"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    r"|\\\\u[dD][89a-fA-F]"
)
EMPTY_KEY = r'""\s*:'
LONG_NUMBER = f"[0-9]{{{EXACT_DIGITS + 1}}}|[0-9][eE][+-]?[0-9]{{3}}"  # or one beyond the range of doubles
# a value after the first one, or a list of objects within it; neither an object nor a list of them; a bad end
SECOND_VALUE = r"[}\]][ \t\r\n]*,?[ \t\r\n]*[{\[]"
NO_OBJECT = r"^[ \t\r\n]*(\[[ \t\r\n]*)?[^ \t\r\n{\[\]\ufeff]|^[ \t\r\n]*\[[ \t\r\n]*\["
NO_END = r"[^ \t\r\n}\]][ \t\r\n]*$"
_HALF_PAIR_BYTES = re.compile(HALF_PAIR.encode())
_EMPTY_KEY_BYTES = re.compile(EMPTY_KEY.encode())
_LONG_NUMBER_BYTES = re.compile(LONG_NUMBER.encode())
_SUSPECT_BYTES = re.compile("|".join((SECOND_VALUE, NO_OBJECT.replace(r"\ufeff", r"\xef"), NO_END)).encode())


@dataclass(frozen=True)
class TextFacts:
    """What a quick scan found in a file, and needs a closer check."""

    may_be_misread: bool  # half a surrogate pair, an empty key, or not one object or list of objects
    long_numbers: bool


def scan_text(file: SourceFile) -> TextFacts:
    """Scan a file. SourceFailed if it cannot be decompressed or is not UTF-8."""
    misread = long_numbers = False
    try:
        with open_decompressed(file) as lines:
            for line in lines:
                misread = misread or _may_be_misread(line)
                long_numbers = long_numbers or _LONG_NUMBER_BYTES.search(line) is not None
                line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise not_utf8_error(file) from error
    except (OSError, EOFError) as error:
        raise unreadable_text_error(file, error) from error
    return TextFacts(misread, long_numbers)


def _may_be_misread(line: bytes) -> bool:
    if b"\\u" in line and _HALF_PAIR_BYTES.search(line) is not None:
        return True
    if b'""' in line and _EMPTY_KEY_BYTES.search(line) is not None:
        return True
    if line.count(b"{") != line.count(b"}") or line.count(b"[") != line.count(b"]"):
        return True
    return _SUSPECT_BYTES.search(line) is not None


def find_bad_line(files: Sequence[SourceFile]) -> SourceFailed | None:
    """The error of the first line that is not a row; None if there is none, or only Spark can decompress."""
    for file in files:
        if is_hadoop_codec(file):
            continue
        with open_decompressed(file) as lines:
            for number, line in enumerate(lines, 1):
                try:
                    problem = _line_problem(line)
                except UnicodeDecodeError:
                    return not_utf8_error(file)
                if problem is not None:
                    what, step = problem
                    return SourceFailed(f"line {number:,} of {file.display_name} {what}", next_step=step)
    return None


def find_line_with_key(files: Sequence[SourceFile], key: str) -> str | None:
    """The first line with an object that has this key, as text for an error."""
    for file in files:
        if is_hadoop_codec(file):
            continue
        with open_decompressed(file) as lines:
            for number, line in enumerate(lines, 1):
                if line.strip() and key in all_keys(json.loads(line.decode("utf-8-sig"))):
                    return f"line {number:,} of {file.display_name}"
    return None


class _DuplicateKey(ValueError):
    """A key that an object has twice."""


def parse_line(text: str) -> Any:
    """Parse a line; {} if it is empty. ValueError for an object with a duplicate key."""
    return json.loads(text, object_pairs_hook=_object_of_pairs) if text.strip(" \t\r\n") else {}


def _line_problem(line: bytes) -> tuple[str, str] | None:
    """What is wrong with a line, and what to do about it."""
    text = line.decode("utf-8-sig")
    try:
        value = parse_line(text)
    except _DuplicateKey as error:
        return f"has an object with {error}", "leave one of them out, or give it another name"
    except json.JSONDecodeError as error:
        if error.msg == "Extra data":
            return f"holds more than one value: another one begins at column {error.colno}", ONE_A_LINE
        return f"is not JSON: {error.msg} at column {error.colno}", ONE_A_LINE
    except ValueError:  # Python reads no longer ones
        return "holds a number of thousands of digits", "write it as text"
    except RecursionError:
        return "is nested too deeply to be read", "write deep values as text"
    if not all(isinstance(one, dict) for one in (value if isinstance(value, list) else [value])):
        return "is not a JSON object", ONE_A_LINE
    for key in all_keys(value):
        if not key:
            return _NO_KEY, _NAME_IT
        if len(key) > _LONGEST_NAME:
            return f"has a key of {len(key):,} characters ({key[:40]!r}…)", "give it a shorter name"
    half = next((one for one in _all_texts(value) if _has_half_surrogate(one)), None)
    if half is not None:
        step = "write both halves of the character, or replace it with U+FFFD"
        return f"holds half of a surrogate pair, which is not a character: {_display_text(half)}", step
    return None


def _object_of_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names: dict[str, str] = {}
    for key, _ in pairs:
        twin = names.setdefault(key.lower(), key)
        if twin != key:
            raise _DuplicateKey(f"the keys {twin!r} and {key!r}, which Spark SQL does not distinguish")
    if len(names) != len(pairs):
        keys = [key for key, _ in pairs]
        raise _DuplicateKey(f"the key {next(key for key in keys if keys.count(key) > 1)!r} twice")
    return dict(pairs)


def all_keys(value: Any) -> Iterator[str]:
    """All keys in a value, at every depth."""
    if isinstance(value, dict):
        yield from value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from all_keys(inner)


def _all_texts(value: Any) -> Iterator[str]:
    """All texts in a value, including keys."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _all_texts(inner)


def _has_half_surrogate(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _display_text(text: str) -> str:
    return json.dumps(text[:40]) + ("…" if len(text) > 40 else "")


def case_conflict_error(one: str, other: str, table: str, files: Sequence[SourceFile]) -> SourceFailed:
    """The error for keys of different objects that differ in case only."""
    places = [find_line_with_key(files, name) for name in (one, other)]
    shown = [
        f"{name!r} ({place})" if place else repr(name)
        for name, place in zip((one, other), places, strict=True)
    ]
    return SourceFailed(
        f"lines of {table!r} have the columns {' and '.join(shown)}, which Spark SQL does not distinguish",
        next_step=_RENAME,
    )


def empty_key_error(where: str) -> SourceFailed:
    return SourceFailed(f"{where} {_NO_KEY}", next_step=_NAME_IT)
