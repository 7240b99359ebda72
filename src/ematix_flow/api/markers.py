"""The markers in a column's annotation: ``pk()``, ``natural_key()``, ``nullable()``."""

from __future__ import annotations

from dataclasses import dataclass

from ematix_flow.errors import DeclarationError


@dataclass(frozen=True)
class PrimaryKey:
    """The column is in the primary key."""


@dataclass(frozen=True)
class NaturalKey:
    """The column is in the natural key of this label; the columns of one label are unique together."""

    group: str = ""


@dataclass(frozen=True)
class Nullable:
    """The column takes nulls."""


def pk(*, autoincrement: bool = False) -> PrimaryKey:
    """Put the column into the primary key; several make a composite one, in the order of the columns.

    ``autoincrement`` documents that the source generates the key. Loaded rows always bring their key.
    """
    given: object = autoincrement
    if not isinstance(given, bool):
        raise DeclarationError(f"pk(autoincrement=…) takes True or False, not {given!r}")
    return PrimaryKey()


def natural_key(group: str = "") -> NaturalKey:
    """Put the column into a natural key: a business key, unique, next to the primary key.

    Columns with the same ``group`` form one key. The first group is what ``merge`` and ``scd2`` match
    rows by when neither ``keys=`` nor ``__merge_keys__`` says otherwise.
    """
    given: object = group
    if not isinstance(given, str):
        raise DeclarationError(f"natural_key(group=…) must be a text, not {given!r}")
    return NaturalKey(group)


def nullable() -> Nullable:
    """Let the column take nulls; the same as ``X | None``."""
    return Nullable()
