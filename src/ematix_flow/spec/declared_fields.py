"""Checks of fields that several declarations have."""

from __future__ import annotations

from ematix_flow.errors import DeclarationError
from ematix_flow.spec.location import SourceLocation


def check_location(where: object) -> None:
    """Refuse a value that a user gave: it would be shown as the place of an error."""
    if where is not None and not isinstance(where, SourceLocation):
        raise DeclarationError(
            f"where= is not an option for you to set, and got {where!r}", next_step="leave it out"
        )
