"""The arguments of each kind of action: which there are, and of what type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from ematix_flow.errors import UsageError, did_you_mean
from ematix_flow.state.actions.records import ActionKind
from ematix_flow.state.dead_letters.base import LetterSelection

_LETTERS: dict[str, type] = {
    "letters": list,
    "all": bool,
    "first": int,
    "stage": str,
    "reason": str,
    "status": str,
}
_ARGUMENTS: Mapping[ActionKind, Mapping[str, type]] = {
    "run": {"with_downstream": bool, "with_upstream": bool, "select": list},
    "restart": {},
    "resume_from_watermark": {},
    "clear": {"slots": list, "since": str},
    "stop": {},
    "pause": {"reason": str},
    "resume": {},
    "pause_schedule": {"reason": str},
    "resume_schedule": {},
    "replay_letters": _LETTERS,
    "park_letters": _LETTERS,
    "purge_letters": _LETTERS,
}
_TYPE_NAMES: Mapping[type, str] = {
    bool: "true or false",
    int: "a whole number",
    str: "a text",
    list: "a list of texts",
}
_MAX_ITEMS, _MAX_CHARACTERS = 1_000, 2_000


def require_action_kind(kind: str) -> ActionKind:
    """Return the kind. Raises UsageError if there is none of this name."""
    for known in get_args(ActionKind):
        if kind == known:
            return kind  # type: ignore[return-value]  # one of its words
    raise UsageError(f"there is no action {kind!r}.{did_you_mean(kind, get_args(ActionKind))}")


def check_arguments(kind: ActionKind, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that say something, so that equal requests compare equal.

    Raises UsageError for an argument that the action does not have, or of another type.
    """
    known, found = _ARGUMENTS[kind], dict[str, Any]()
    for name, value in given.items():
        if name not in known:
            none = " It takes none." if not known else did_you_mean(name, known)
            raise UsageError(f"the action {kind} has no argument {name!r}.{none}")
        if value is None or value is False or value == [] or value == "":
            continue
        if not _has_type(value, known[name]):
            raise UsageError(f"{name!r} of the action {kind} is {_TYPE_NAMES[known[name]]}, not {value!r}")
        found[name] = list(value) if known[name] is list else value
    return found


def _has_type(value: object, expected: type) -> bool:
    if expected is list:
        items = value if isinstance(value, list | tuple) else [None]
        return len(items) <= _MAX_ITEMS and all(_has_type(item, str) for item in items)
    if expected is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, expected) and (not isinstance(value, str) or 0 < len(value) <= _MAX_CHARACTERS)


def letter_selection(arguments: Mapping[str, Any]) -> LetterSelection:
    """Return the letters that the arguments select. Raises UsageError if they select none."""
    ids = arguments.get("letters")
    return LetterSelection(
        all=bool(arguments.get("all")),
        first=arguments.get("first"),
        ids=None if ids is None else tuple(ids),
        stage=arguments.get("stage"),
        reason=arguments.get("reason"),
        status=arguments.get("status"),
    )
