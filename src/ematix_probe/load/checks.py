"""Checks of single answers. An answer that fails a check counts as an error with the check's name.

Without a check of the status, an HTTP answer other than 2xx is an error.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ematix_probe.errors import DeclarationError
from ematix_probe.location import caller_location


@dataclass(frozen=True)
class Response:
    """An answer over HTTP. Names of headers are in lower case."""

    status: int
    headers: Sequence[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        wanted = name.lower()
        return next((value for key, value in self.headers if key == wanted), None)

    @cached_property
    def content(self) -> bytes:
        """The body with its ``Content-Encoding`` taken off."""
        coding = (self.header("content-encoding") or "").strip().lower()
        if coding in ("gzip", "x-gzip"):
            return gzip.decompress(self.body)
        return zlib.decompress(self.body) if coding == "deflate" else self.body

    @property
    def text(self) -> str:
        return self.content.decode("utf-8", "replace")

    def json(self) -> Any:
        return json.loads(self.content)


@dataclass(frozen=True)
class Rows:
    """What a statement returned: how many rows, and the first thousand of them."""

    count: int
    rows: Sequence[tuple[Any, ...]]


@dataclass(frozen=True)
class Check:
    """The base of all checks. `failure` returns None, or in words why the answer fails."""

    name: str

    def failure(self, answer: Any) -> str | None:
        raise NotImplementedError


@dataclass(frozen=True)
class StatusCheck(Check):
    statuses: frozenset[int]

    def failure(self, answer: Response) -> str | None:
        return None if answer.status in self.statuses else f"the status is {answer.status}"


@dataclass(frozen=True)
class ContainsCheck(Check):
    part: bytes

    def failure(self, answer: Response) -> str | None:
        return None if self.part in answer.content else f"the body does not contain {self.part[:80]!r}"


@dataclass(frozen=True)
class JsonCheck(Check):
    path: tuple[str | int, ...]
    value: Any

    def failure(self, answer: Response) -> str | None:
        try:
            found: Any = answer.json()
        except ValueError:
            return "the body is no JSON"
        for part in self.path:
            try:
                found = found[part]
            except (LookupError, TypeError):
                return f"the body has no {part!r} in this path"
        equal = found == self.value and isinstance(found, bool) == isinstance(self.value, bool)
        return None if equal else f"the value is {json.dumps(found)[:80]}"


@dataclass(frozen=True)
class RowCountCheck(Check):
    at_least: int
    at_most: int | None

    def failure(self, answer: Rows) -> str | None:
        if answer.count < self.at_least or (self.at_most is not None and answer.count > self.at_most):
            return f"the statement returned {answer.count} rows"
        return None


@dataclass(frozen=True)
class FunctionCheck(Check):
    function: Callable[[Any], object] = field(repr=False)

    def failure(self, answer: Any) -> str | None:
        try:
            return None if self.function(answer) else "the function returned a false value"
        except Exception as error:
            return f"{type(error).__name__}: {error}"


class _Checks:
    """``check.status([200])``, ``check.contains("paid")``, ``check.json("$.state", "paid")`` …"""

    def status(self, statuses: Iterable[int] | int, *, name: str | None = None) -> Check:
        """The status is one of these. It replaces the rule that only 2xx is good."""
        listed = read_statuses("check.status()", statuses)
        return StatusCheck(_name(name, f"status in {', '.join(map(str, sorted(listed)))}"), frozenset(listed))

    def contains(self, part: str | bytes, *, name: str | None = None) -> Check:
        """The body contains this text."""
        if not isinstance(part, (str, bytes)) or not part:
            raise _wrong(f"check.contains() takes a text, not {part!r}")
        return ContainsCheck(
            _name(name, f"contains {part!r}"), part.encode() if isinstance(part, str) else part
        )

    def json(self, path: str, value: Any, *, name: str | None = None) -> Check:
        """The value at a path such as ``$.items[0].state`` equals ``value``."""
        return JsonCheck(_name(name, f"{path} == {value!r}"), _path(path), value)

    def row_count(self, *, at_least: int = 0, at_most: int | None = None, name: str | None = None) -> Check:
        """The statement returned so many rows."""
        for option, count in (("at_least", at_least), ("at_most", at_most)):
            if count is not None and (not isinstance(count, int) or isinstance(count, bool) or count < 0):
                raise _wrong(f"check.row_count({option}=) is a whole number from 0, not {count!r}")
        return RowCountCheck(_name(name, "row_count"), at_least, at_most)

    def that(self, name: str, function: Callable[[Any], object]) -> Check:
        """A function of the answer returns a true value."""
        if not callable(function):
            raise _wrong(f"check.that() takes a name and a function, not {function!r}")
        return FunctionCheck(_name(name, ""), function)


check = _Checks()


def read_checks(given: Any, kinds: tuple[type[Check], ...], where: str | None) -> tuple[Check, ...]:
    """The checks of a target; a function becomes a check with the function's name."""
    if isinstance(given, (Check, str)) or not isinstance(given, Iterable):
        raise DeclarationError(f"checks= takes a list of checks, not {given!r}", where=where)
    checks = []
    for each in given:
        if callable(each) and not isinstance(each, Check):
            each = FunctionCheck(getattr(each, "__name__", "check"), each)
        if not isinstance(each, kinds):
            raise DeclarationError(f"checks= of this target takes no {each!r}", where=where)
        checks.append(each)
    names = [each.name for each in checks]
    if len(set(names)) != len(names):
        raise DeclarationError(f"two checks have the same name: {', '.join(names)}", where=where)
    return tuple(checks)


def read_statuses(what: str, statuses: Any) -> set[int]:
    listed = {statuses} if isinstance(statuses, int) else statuses
    if isinstance(listed, (str, bytes)) or not isinstance(listed, Iterable):
        raise _wrong(f"{what} takes a list of HTTP statuses, not {statuses!r}")
    found = set(listed)
    wrong = [
        each for each in found if not isinstance(each, int) or isinstance(each, bool) or not 100 <= each < 600
    ]
    if wrong or not found:
        raise _wrong(f"{what} takes HTTP statuses from 100 to 599, not {statuses!r}")
    return found


def judge(checks: tuple[Check, ...], answer: Any) -> tuple[str | None, str]:
    """The kind and the words of the first check that the answer fails."""
    for each in checks:
        try:
            failure = each.failure(answer)
        except Exception as error:  # a body that cannot be unpacked
            failure = f"{type(error).__name__}: {error}"
        if failure is not None:
            return f"check: {each.name}", failure
    return None, ""


def needs_body(checks: Iterable[Check]) -> bool:
    return any(not isinstance(each, StatusCheck) for each in checks)


def functions_of(checks: Iterable[Check]) -> list[Callable[[Any], object]]:
    return [each.function for each in checks if isinstance(each, FunctionCheck)]


_STEP = re.compile(r"\.?([A-Za-z_][\w-]*)|\[(\d+)\]|\[\"([^\"]*)\"\]|\['([^']*)'\]")


def _path(path: Any) -> tuple[str | int, ...]:
    if not isinstance(path, str):
        raise _wrong(f"check.json() takes a path as a text, not {path!r}")
    rest, steps = path.removeprefix("$"), []
    at = 0
    while at < len(rest):
        found = _STEP.match(rest, at)
        if found is None:
            raise _wrong(f"check.json() cannot read the path {path!r}: write it as $.items[0].state")
        index = found[2]
        steps.append(
            int(index)
            if index is not None
            else next(p for p in (found[1], found[3], found[4]) if p is not None)
        )
        at = found.end()
    return tuple(steps)


def _name(name: Any, otherwise: str) -> str:
    chosen = otherwise if name is None else name
    if not isinstance(chosen, str) or not chosen.strip():
        raise _wrong(f"the name of a check is a text, not {chosen!r}")
    return chosen


def _wrong(what: str) -> DeclarationError:
    return DeclarationError(what, where=caller_location())
