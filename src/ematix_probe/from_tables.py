"""Probes from declared tables: NOT NULL, primary key and unique constraints become assertions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ematix_probe.assertions import NotNull, Options, Unique
from ematix_probe.declaration import DataPlan, DataProbe, refuse_deferred_body, refuse_repeated_labels
from ematix_probe.errors import DeclarationError
from ematix_probe.location import caller_location
from ematix_probe.sources.base import Subject
from ematix_probe.tester import Tester
from ematix_probe.unknown_options import refuse_unknown_options

_IS_CURRENT, _VALID_FROM, _VALID_TO = "is_current", "valid_from", "valid_to"


@refuse_unknown_options("probe_from_table()")
def probe_from_table(
    table_cls: Any,
    *,
    source: Any,
    extend: Callable[[Tester], object] | None = None,
    name: str | None = None,
    schema: str | None = None,
    table: str | None = None,
    current_only: bool | None = None,
) -> DataProbe:
    """A data probe of what a table class declares.

    Any class with ``__tablename__`` and ``columns`` takes part: ``ManagedTable`` and ``@ematix.table`` of
    ematix_flow, or the user's own. The probe has a not_null for each column that may not be NULL, one unique
    over the primary key, and one for each of ``__unique_constraints__`` and each natural key. ``extend`` gets
    the `Tester` and adds more.

    In a table of versions (scd2) the key repeats by design. ``current_only=True`` limits unique to current
    rows (``is_current``). Without it a class that declares ``valid_from`` and ``is_current`` itself is taken
    for a table of versions, and so limited. ematix_flow adds these columns when it loads a table, not to the
    class: give ``current_only=True`` for the target of an scd2 pipeline.
    """
    from ematix_probe.sources.resolving import resolve_source

    where = caller_location()
    tablename, columns = _declared(table_cls, where)
    names = [_column_name(column, where) for column in columns]
    versions = current_only if current_only is not None else {_VALID_FROM, _IS_CURRENT} <= set(names)
    options = Options(where=_current_rows(names)) if versions else Options()
    tester = Tester()
    key = _primary_key(columns)
    for column, column_name in zip(columns, names, strict=True):
        if not _nullable(column, column_name in key):
            tester.add(NotNull(column_name))
    for group in _unique_groups(table_cls, key, names, where):
        columns_of_key = tuple(each for each in group if not (versions and each == _VALID_FROM))
        tester.add(Unique(columns_of_key or group, options=options))
    if extend is not None:
        refuse_deferred_body(extend, where)
        extend(tester)
    label = getattr(table_cls, "__name__", tablename)
    if not tester.assertions:
        raise DeclarationError(
            f"{label} declares nothing to check: all its columns may be NULL, and it has no key",
            where=where,
            next_step="add assertions, as in  extend=lambda t: t.row_count(at_least=1)",
        )
    refuse_repeated_labels(name or tablename, tester.assertions, where)
    resolved = resolve_source(source, where)
    declared_schema = schema if schema is not None else getattr(table_cls, "__schema__", None)
    alone = resolved.default_subject
    subject = Subject(table or tablename, declared_schema)
    if alone is not None and table is None and resolved.is_single:
        subject = alone
    description = " ".join((getattr(table_cls, "__doc__", None) or "").split()) or None
    return DataProbe(DataPlan(name or tablename, resolved, subject, tester.assertions, where, description))


def _declared(table_cls: Any, where: str | None) -> tuple[str, list[Any]]:
    tablename, columns = getattr(table_cls, "__tablename__", None), getattr(table_cls, "columns", None)
    label = getattr(table_cls, "__name__", repr(table_cls))
    if not isinstance(tablename, str) or not tablename:
        raise DeclarationError(
            f"{label} has no __tablename__",
            where=where,
            next_step="give a table class: one with __tablename__ and columns",
        )
    if isinstance(columns, (str, bytes)) or not isinstance(columns, Iterable):
        raise DeclarationError(f"{label} has no columns that can be listed", where=where)
    found = list(columns.values()) if hasattr(columns, "values") else list(columns)
    if not found:
        raise DeclarationError(f"{label} has no columns", where=where)
    return tablename, found


def _column_name(column: Any, where: str | None) -> str:
    name = getattr(column, "name", None)
    if not isinstance(name, str) or not name:
        raise DeclarationError(f"a column without a name: {column!r}", where=where)
    return name


def _primary_key(columns: Sequence[Any]) -> tuple[str, ...]:
    return tuple(column.name for column in columns if _is_key(column))


def _is_key(column: Any) -> bool:
    return any(
        bool(getattr(column, attribute, False)) for attribute in ("primary_key", "is_primary_key", "pk")
    )


def _nullable(column: Any, in_key: bool) -> bool:
    """Whether NULL is allowed. A column that does not say may hold NULL, unless it is part of the key."""
    if in_key:
        return False
    nullable = getattr(column, "nullable", None)
    if nullable is not None:
        return bool(nullable)
    return not bool(getattr(column, "not_null", False))


def _unique_groups(
    table_cls: Any, key: tuple[str, ...], names: Sequence[str], where: str | None
) -> list[tuple[str, ...]]:
    """The groups of columns that identify a row, each once: key, unique constraints, natural keys."""
    groups = [key] if key else []
    constraints = getattr(table_cls, "__unique_constraints__", None) or ()
    if isinstance(constraints, str) or not isinstance(constraints, Iterable):
        raise DeclarationError(
            f"__unique_constraints__ lists groups of columns, not {constraints!r}", where=where
        )
    natural = getattr(getattr(table_cls, "__table_spec__", None), "natural_keys", None) or ()
    for group in [*constraints, *natural]:
        columns = (group,) if isinstance(group, str) else tuple(group)
        for column in columns:
            if column not in names:
                raise DeclarationError(
                    f"a unique constraint names {column!r}, which is not a column of the table", where=where
                )
        if columns:
            groups.append(columns)
    found: dict[frozenset[str], tuple[str, ...]] = {}
    for group in groups:
        found.setdefault(frozenset(group), group)
    return list(found.values())


def _current_rows(names: Sequence[str]) -> str:
    """The condition of current rows: ``is_current``, else no ``valid_to``."""
    return "valid_to IS NULL" if _IS_CURRENT not in names and _VALID_TO in names else _IS_CURRENT
