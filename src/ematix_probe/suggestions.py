"""Suggests the name that was probably meant."""

from __future__ import annotations

from collections.abc import Iterable


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """``. Did you mean 'x'?``, to end a sentence, for the nearest known name; nothing if none is near."""
    import difflib

    lower = {name.lower(): name for name in known}
    near = difflib.get_close_matches(given.lower(), lower, n=1, cutoff=0.6)
    return f". Did you mean {lower[near[0]]!r}?" if near else ""
