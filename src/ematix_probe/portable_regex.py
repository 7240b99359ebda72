r"""The subset of regular expressions that works the same in every engine, and its syntax in each of them.

Postgres, DuckDB, Spark and Python disagree on ``.``, ``$``, ``\b``, ``\w``, look-around, back references and
POSIX classes. This module translates a pattern to the syntax of an engine, with these rules: ``\d \w \s \b``
are ASCII, ``.`` is anything but a newline, ``^`` and ``$`` are the ends of the whole text. A pattern that
cannot work the same everywhere is refused when it is declared.

One difference remains: among alternatives of which one begins with the other, Postgres takes the longest
match and the others the first. Write the longer alternative first, then all agree.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ematix_probe.wording import literal

FLAVOURS = ("python", "postgres", "re2", "java", "mysql")

_WHITESPACE = " \t\n\r\f\v"
_CLASSES = {"d": "0-9", "w": "A-Za-z0-9_", "s": _WHITESPACE}
_CONTROLS = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v"}
_END = {"python": r"\Z", "postgres": r"\Z", "re2": r"\z", "java": r"\z", "mysql": r"\z"}
_WORD = "[A-Za-z0-9_]"
# MySQL's own \b knows letters beyond ASCII
_BOUNDARY = {
    "b": {"postgres": r"\y", "mysql": f"(?:(?<={_WORD})(?!{_WORD})|(?<!{_WORD})(?={_WORD}))"},
    "B": {"postgres": r"\Y", "mysql": f"(?:(?<={_WORD})(?={_WORD})|(?<!{_WORD})(?!{_WORD}))"},
}
_BOUND = re.compile(r"\{(\d+)(?:,(\d*))?\}")
_SPECIAL = frozenset(r"\.[]{}()*+?^$|&-/#~")
_MOST_REPEATS = 255  # Postgres allows no more


class PatternError(ValueError):
    """A pattern or a replacement does not work in every engine. ``next_step`` says what to write instead."""

    def __init__(self, what: str, *, next_step: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.next_step = next_step


def check_pattern(pattern: str) -> int:
    """The number of groups of a pattern; PatternError when it is not portable."""
    written = translate(pattern, "python")
    try:
        return re.compile(written, re.ASCII).groups
    except re.error as error:
        raise PatternError(f"the regular expression {literal(pattern)} is wrong: {error}") from None


def matches_empty_after_start(pattern: str) -> bool:
    """Whether the pattern can match the empty text after the start of a text."""
    return matches_empty_text(pattern) and not pattern.startswith(("^", r"\A"))


def matches_empty_text(pattern: str) -> bool:
    """Whether the pattern matches the empty text."""
    return re.compile(translate(pattern, "python"), re.ASCII).search("") is not None


def check_replacement(replacement: str, groups: int) -> None:
    for part in replacement_parts(replacement):
        if isinstance(part, int) and part > groups:
            raise PatternError(
                f"the replacement {replacement!r} names group {part}, the pattern has {groups}"
            )


def replacement_parts(replacement: str) -> tuple[str | int, ...]:
    r"""The literal texts and group numbers of a replacement; ``\\`` is a backslash."""
    parts: list[str | int] = []
    literal = ""
    position = 0
    while position < len(replacement):
        char = replacement[position]
        position += 1
        if char != "\\":
            literal += char
            continue
        follower = replacement[position : position + 1]
        position += 1
        if follower == "\\":
            literal += "\\"
        elif follower and follower in "0123456789&":
            if literal:
                parts.append(literal)
                literal = ""
            parts.append(0 if follower == "&" else int(follower))
        else:
            raise PatternError(
                f"the replacement {replacement!r} holds a single backslash",
                next_step=r"write \1 to \9 for a group, \0 for the whole match, \\ for a backslash",
            )
    if literal:
        parts.append(literal)
    return tuple(parts)


def write_replacement(parts: tuple[str | int, ...], flavour: str, shift: int = 0) -> str:
    """The replacement in the syntax of an engine, with group numbers increased by ``shift``."""
    out = ""
    for part in parts:
        if isinstance(part, int):
            number = part + shift
            if flavour == "java":
                out += f"${number}"
            elif flavour == "python":
                out += f"\\g<{number}>"
            elif flavour == "postgres" and number == 0:
                out += "\\&"
            else:
                out += f"\\{number}"
        else:
            literal = part.replace("\\", "\\\\")
            if flavour == "java":
                literal = literal.replace("$", "\\$")
                if literal[0].isdigit():  # else it would belong to the number of the group before it
                    literal = "\\" + literal
            out += literal
    return out


def translate(pattern: str, flavour: str) -> str:
    """The pattern in the syntax of an engine."""
    return _PatternTranslator(pattern, flavour).translate()


@dataclass
class _PatternTranslator:
    pattern: str
    flavour: str
    position: int = 0
    greedy: bool = False
    lazy: bool = False

    def translate(self) -> str:
        out = []
        while self.position < len(self.pattern):
            out.append(self._translate_one())
        if self.greedy and self.lazy:
            raise self._not_portable_error(
                "mixes greedy and lazy quantifiers, which Postgres reads differently"
            )
        return "".join(out)

    def _not_portable_error(self, why: str) -> PatternError:
        return PatternError(
            f"the regular expression {literal(self.pattern)} {why}",
            next_step="use only syntax that all engines share, or sql() with a function of the source",
        )

    def _next_character(self) -> str:
        if self.position >= len(self.pattern):
            raise self._not_portable_error("ends in the middle")
        char = self.pattern[self.position]
        self.position += 1
        return char

    def _translate_one(self) -> str:
        char = self._next_character()
        if char == "\\":
            return self._escape(self._next_character())
        if char == "[":
            return self._bracket()
        if char == "(":
            if self.pattern.startswith("?", self.position):
                if not self.pattern.startswith("?:", self.position):
                    raise self._not_portable_error("uses a (?…) that is not portable; (?:…) is")
                self.position += 2
                return "(?:"
            return "("
        if char == ".":
            return "[^\n]"
        if char == "$":
            return _END[self.flavour]
        if char in "*+?{":
            return self._quantifier(char)
        return "\\" + char if char in "]}" else char

    def _quantifier(self, char: str) -> str:
        if char == "{":
            bound = _BOUND.match(self.pattern, self.position - 1)
            if bound is None:
                raise self._not_portable_error(r"contains a { without a count; write \{ for the character")
            if max(int(bound[1]), int(bound[2] or 0)) > _MOST_REPEATS:
                raise self._not_portable_error(f"repeats more than {_MOST_REPEATS} times")
            self.position = bound.end()
            char = bound[0]
        if self.pattern.startswith("+", self.position):
            raise self._not_portable_error("uses a possessive quantifier")
        if self.pattern.startswith("?", self.position):
            self.position += 1
            self.lazy = True
            return char + "?"
        self.greedy = True
        return char

    def _escape(self, char: str) -> str:
        if char in _CLASSES:
            return f"[{_CLASSES[char]}]"
        if char.lower() in _CLASSES:
            return f"[^{_CLASSES[char.lower()]}]"
        if char in _BOUNDARY:
            return _BOUNDARY[char].get(self.flavour, "\\" + char)
        if char == "A":
            return "^"
        if char in "zZ":
            return _END[self.flavour]
        return _literal(self._escaped_character(char))

    def _escaped_character(self, char: str) -> str:
        if char in _CONTROLS:
            return _CONTROLS[char]
        if char in "xu":
            digits = 2 if char == "x" else 4
            code = self.pattern[self.position : self.position + digits]
            if not re.fullmatch(rf"[0-9A-Fa-f]{{{digits}}}", code) or int(code, 16) == 0:
                raise self._not_portable_error(f"holds a \\{char} without {digits} hexadecimal digits")
            self.position += digits
            return chr(int(code, 16))
        if char.isdigit():
            raise self._not_portable_error("refers back to a group, which DuckDB cannot")
        if char.isalnum():
            raise self._not_portable_error(f"uses \\{char}, which is not the same everywhere")
        return char

    def _bracket(self) -> str:
        out = "["
        if self.pattern.startswith("^", self.position):
            self.position += 1
            out += "^"
        first = True
        while True:
            char = self._next_character()
            if char == "]" and not first:
                return out + "]"
            first = False
            if char == "[" and self.pattern[self.position : self.position + 1] in (":", ".", "="):
                raise self._not_portable_error("uses a POSIX class; write the characters, as in [A-Za-z]")
            if char == "\\":
                escaped = self._next_character()
                if escaped in _CLASSES:
                    out += _CLASSES[escaped]
                    continue
                if escaped.lower() in _CLASSES or escaped in "bB":
                    raise self._not_portable_error(f"uses \\{escaped} in brackets")
                out += _literal(self._escaped_character(escaped))
            elif char == "-" and self._is_range(out):
                out += "-"
            else:
                out += _literal(char)

    def _is_range(self, out: str) -> bool:
        """Whether a hyphen is between two characters, not at an end of the brackets."""
        return out not in ("[", "[^") and not self.pattern.startswith("]", self.position)


def _literal(char: str) -> str:
    return "\\" + char if char in _SPECIAL else char
