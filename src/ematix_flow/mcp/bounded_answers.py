"""Answers of at most `MOST_BYTES`: what is too long is shortened, and the answer says what was left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ematix_flow.web.answers import plain_json_bytes
from ematix_probe.redaction import mask_all

MOST_BYTES = 100_000
_MOST_NOTES = 20
_LONGEST_NAME = 200
_DEEPEST = 40
# characters of a text and items of a list that are tried, one after the other
_SIZES = ((20_000, 1_000), (8_000, 300), (4_000, 100), (2_000, 40), (1_000, 20), (400, 10), (150, 5), (60, 2))
# these characters of a hostile text change what a terminal shows around them
_CONTROLS = (*range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_UNSAFE = {code: f"\\u{code:04x}" for code in _CONTROLS}


def bounded_json(value: Any, most: int = MOST_BYTES) -> str:
    """The value as masked JSON of at most ``most`` bytes.

    If anything was left out, the object has ``left_out``, which says what and how much.
    """
    value = mask_all(value)  # first: half a secret would not be found
    text = _to_text(value)
    if len(text.encode()) <= most:
        return text
    for longest, items in _SIZES:
        shortening = _Shortening(longest, items)
        short = shortening.shorten(value, "", 0)
        whole = short if isinstance(short, dict) else {"value": short}
        text = _to_text({**whole, "left_out": shortening.summary()})
        if len(text.encode()) <= most:
            return text
    return _to_text({"left_out": [f"the whole answer: it has more than {most:,} bytes even when shortened"]})


def _to_text(value: Any) -> str:
    return plain_json_bytes(value).decode("utf-8").translate(_UNSAFE)


@dataclass
class _Shortening:
    """One attempt: the longest text and the longest list that it leaves, and what it left out."""

    longest: int
    items: int
    notes: dict[str, str] = field(default_factory=dict)

    def shorten(self, value: Any, place: str, depth: int) -> Any:
        if isinstance(value, str):
            return self._shorten_text(value, place)
        if isinstance(value, Mapping):
            if depth > _DEEPEST:
                return self._note(place, "what is below")
            names = list(value)[: self.items * 5]
            if len(names) < len(value):
                self._note(place, f"{len(value) - len(names):,} of {len(value):,} names")
            return {
                str(name)[:_LONGEST_NAME]: self.shorten(value[name], _join(place, name), depth + 1)
                for name in names
            }
        if isinstance(value, list | tuple):
            if depth > _DEEPEST:
                return self._note(place, "what is below")
            return self._shorten_list(value, place, depth)
        return value

    def _shorten_list(self, value: list[Any] | tuple[Any, ...], place: str, depth: int) -> list[Any]:
        shown = list(value)
        if len(shown) > self.items:
            self._note(place, f"{len(shown) - self.items:,} of {len(shown):,} items")
            # the end of a log says more than its beginning
            is_log = place in ("lines", "log")
            shown = shown[-self.items :] if is_log else shown[: self.items]
        return [self.shorten(each, f"{place}[]", depth + 1) for each in shown]

    def _shorten_text(self, text: str, place: str) -> str:
        if len(text) <= self.longest:
            return text
        left_out = len(text) - self.longest
        self._note(place, f"{left_out:,} characters of a text")
        head = self.longest * 2 // 3
        return f"{text[:head]} … {left_out:,} characters left out … {text[head + left_out :]}"

    def _note(self, place: str, what: str) -> None:
        self.notes.setdefault(place or "the answer", what)

    def summary(self) -> list[str]:
        shown = [f"{place[:_LONGEST_NAME]}: {what}" for place, what in self.notes.items()]
        more = len(shown) - _MOST_NOTES
        notes = shown[:_MOST_NOTES] + ([f"and {more:,} more"] if more > 0 else [])
        return [*notes, "ask for less: a smaller limit or tail, or one item"]


def _join(place: str, name: object) -> str:
    return f"{place}.{name}" if place else str(name)
