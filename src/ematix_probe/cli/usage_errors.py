"""The words of an error about an option or argument, also for `ematix_flow`."""

from __future__ import annotations

from typing import Any


def usage_text(error: Any) -> str:
    """Typer's message as ours read: without its capital, and with the names that were possibly meant."""
    possible = getattr(error, "possibilities", None)
    message: str = _number_text(error) or (error.message if possible else error.format_message())
    if possible:
        message = f"{message.rstrip('.')}. Did you mean {' or '.join(sorted(possible))}?"
    message = message.replace("Value error, ", "")  # added by pydantic, which typer uses
    return message[:1].lower() + message[1:]


def command_of(error: Any, program: str) -> str:
    """The command that was called, as the user wrote it."""
    context = getattr(error, "ctx", None)
    return context.command_path if context is not None else program


def _number_text(error: Any) -> str | None:
    """A plain text for pydantic's error about a number; None for other errors."""
    found: list[dict[str, Any]] = getattr(error.__cause__, "errors", list)()
    option = getattr(error, "param", None)
    if not found or option is None:
        return None
    limits = found[0].get("ctx", {})
    wanted = {
        "int_parsing": "a whole number",
        "float_parsing": "a number",
        "greater_than_equal": f"a number from {limits.get('ge')} up",
        "less_than_equal": f"a number up to {limits.get('le')}",
    }.get(found[0]["type"])
    if wanted is None:
        return None
    return f"{max(option.opts, key=len)} takes {wanted}, not {found[0]['input']!r}"
