"""Compare a declared table with the live one: what to add, widen and relax, and what a person must do.

Pure except for ``ask``, which queries the rows. `alterations` and `rebuild` turn the result into statements.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sqlglot import exp

from ematix_flow.backends.base import DiffLine, LiveTable
from ematix_flow.backends.sql import scd2_conversion
from ematix_flow.backends.sql.create_table import column_list, unique_groups
from ematix_flow.backends.sql.session import SqlDialect
from ematix_flow.backends.sql.type_widening import takes_exactly_or_rejects, widens
from ematix_flow.spec.tables import ROW_HASH, VALID_FROM, ColumnSpec, TableSpec
from ematix_flow.spec.types import DataType
from ematix_flow.strategies.matching import Matching
from ematix_flow.strategies.row_hash import TAGS
from ematix_flow.strategies.sql import column

KeyColumns = tuple[str, ...]
FetchRows = Callable[[exp.Expr], list[tuple[Any, ...]]]
_MAX_SHOWN = 3


@dataclass
class TableDiff:
    """What `compare_tables` found. Columns are as declared."""

    wanted: TableSpec
    live: LiveTable
    added: list[ColumnSpec] = field(default_factory=list)
    widened: list[ColumnSpec] = field(default_factory=list)
    relaxed: list[ColumnSpec] = field(default_factory=list)
    tightened: list[ColumnSpec] = field(default_factory=list)  # NOT NULL after they are filled
    primary_key: KeyColumns | None = None  # the new primary key
    drop_keys: list[KeyColumns] = field(default_factory=list)
    add_unique: list[KeyColumns] = field(default_factory=list)
    first_version_values: Mapping[str, exp.Expr] = field(
        default_factory=dict
    )  # values of the version columns
    rehash: exp.Expr | None = None  # new row_hash, when a changed type changes the hash
    converts_to_scd2: bool = False
    lines: list[DiffLine] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)
    blockers: list[str] = field(default_factory=list)

    @property
    def has_changes(self) -> bool:
        return bool(self.added or self.widened or self.relaxed or self.add_unique or self.converts_to_scd2)

    @property
    def only_adds_columns(self) -> bool:
        return not (self.widened or self.relaxed or self.add_unique or self.converts_to_scd2)

    def refuse(self, subject: str, difference: str, *, blocks: bool = False) -> None:
        self.lines.append(DiffLine("!", subject, difference))
        self.differences.append(difference)
        if blocks:
            self.blockers.append(difference)


def compare_tables(
    dialect: SqlDialect, wanted: TableSpec, live: LiveTable, matching: Matching, ask: FetchRows
) -> TableDiff:
    diff = TableDiff(wanted, live, converts_to_scd2=scd2_conversion.needs_conversion(wanted, live))
    there = {c.name: c for c in live.columns}
    if scd2_conversion.keeps_versions(live) and not scd2_conversion.may_keep_versions(wanted):
        diff.refuse("table", scd2_conversion.revert_instructions(dialect, wanted, live), blocks=True)
    for item in wanted.columns:
        live_column = there.get(item.name)
        if live_column is None:
            _compare_missing_column(dialect, diff, item, ask)
        else:
            _compare_type(dialect, diff, item, live_column)
            _compare_nulls(dialect, diff, item, live_column)
    _compare_undeclared_columns(diff)
    _compare_keys(dialect, diff, matching, ask)
    if diff.converts_to_scd2:
        diff.first_version_values = scd2_conversion.first_version_values(dialect, wanted, live, matching)
        diff.blockers.append(f"{wanted.label} keeps no versions yet")
    _plan_rehash(dialect, diff, matching)
    return diff


# ------------------------------------------------------------------ columns


def _compare_missing_column(dialect: SqlDialect, diff: TableDiff, item: ColumnSpec, ask: FetchRows) -> None:
    table = dialect.table(diff.wanted.schema, diff.wanted.name)
    is_filled = diff.converts_to_scd2 and item.name in scd2_conversion.VERSION_COLUMNS
    if not item.nullable and not is_filled and ask(exp.select("1").from_(table).limit(1)):
        quoted, name = dialect.quote(item.name), dialect.render(table)
        diff.refuse(
            item.name,
            f"column {item.name!r} ({item.type}, not null) is declared but not in the table, which has rows. "
            "By hand: "
            f"{dialect.manual_statement(name, dialect.add_column_clause(replace(item, nullable=True)))}; "
            f"UPDATE {name} SET {quoted} = …; "
            f"{dialect.manual_statement(name, dialect.nullability_clause(item))}",
            blocks=True,
        )
        return
    diff.added.append(item)
    diff.lines.append(DiffLine("+", item.name, now=_type_text(dialect.native_type(item.type), item.nullable)))
    diff.blockers.append(f"column {item.name!r} ({item.type}) is declared but not in the table")


def _compare_type(dialect: SqlDialect, diff: TableDiff, item: ColumnSpec, live_column: ColumnSpec) -> None:
    live, name = diff.live, item.name
    native = live.native.get(name)
    limit = live.limits.get(name)
    if dialect.can_hold(item.type, live_column.type, native) and _same_limit(dialect, item, limit):
        return
    live_type = native or str(live_column.type)
    meaning = limit or (live_column.type if native is None else dialect.canonical_type(native))
    difference = f"column {name!r} is {live_type} in the table, declared as {item.type}"
    loose = meaning is None or not takes_exactly_or_rejects(
        meaning, item.type
    )  # it would round, cut or refuse values
    if meaning is None or not widens(meaning, item.type):
        table = dialect.render(dialect.table(diff.wanted.schema, diff.wanted.name))
        narrower = meaning is not None and widens(item.type, meaning)
        why = "narrower, and values may not fit" if narrower else "another kind of value"
        hint = dialect.manual_statement(table, dialect.conversion_clause(item))
        diff.refuse(name, f"{difference} ({why}). By hand: {hint}", blocks=loose)
    elif name in live.pinned:
        diff.refuse(
            name, f"{difference}; {live.pinned[name]}: drop that, load, and create it again", blocks=loose
        )
    else:
        diff.widened.append(item)
        diff.lines.append(DiffLine("~", name, live_type, dialect.display_type(item.type)))
        if loose:
            diff.blockers.append(difference)


def _same_limit(dialect: SqlDialect, item: ColumnSpec, limit: DataType | None) -> bool:
    if limit is None:
        return True
    return dialect.column_constraint(replace(item, type=limit)) == dialect.column_constraint(item)


def _compare_nulls(dialect: SqlDialect, diff: TableDiff, item: ColumnSpec, live_column: ColumnSpec) -> None:
    if live_column.nullable == item.nullable:
        return
    if item.nullable:
        if item.name not in diff.live.primary_key:  # reported with the key
            diff.relaxed.append(item)
            diff.lines.append(DiffLine("~", item.name, "not null", "nullable"))
        return
    if diff.converts_to_scd2 and item.name in scd2_conversion.VERSION_COLUMNS:
        diff.tightened.append(item)
        return
    table = dialect.render(dialect.table(diff.wanted.schema, diff.wanted.name))
    diff.refuse(
        item.name,
        f"column {item.name!r} is nullable in the table, declared as not null. "
        "By hand, when no row has a null: "
        f"{dialect.manual_statement(table, dialect.nullability_clause(item))}",
    )


def _compare_undeclared_columns(diff: TableDiff) -> None:
    declared = set(diff.wanted.column_names)
    for item in diff.live.columns:
        if item.name in declared:
            continue
        if item.nullable:
            native = diff.live.native.get(item.name) or str(item.type)
            diff.lines.append(DiffLine("=", item.name, f"{native}, not declared"))
        elif not (scd2_conversion.keeps_versions(diff.live) and item.name in scd2_conversion.VERSION_COLUMNS):
            difference = (
                f"column {item.name!r} of the table is not null and not declared: no load could fill it"
            )
            diff.refuse(item.name, f"{difference}. Declare it, or by hand: give it a default", blocks=True)


def _type_text(native: str, nullable: bool) -> str:
    return native if nullable else f"{native} NOT NULL"


# ------------------------------------------------------------------ keys


def _compare_keys(dialect: SqlDialect, diff: TableDiff, matching: Matching, ask: FetchRows) -> None:
    wanted, live = diff.wanted, diff.live
    stored = {frozenset(group) for group in live.unique} | {frozenset(live.primary_key)}
    if set(wanted.primary_key) != set(live.primary_key):
        is_extended = diff.converts_to_scd2 and set(wanted.primary_key) == {
            *live.primary_key,
            VALID_FROM,
        }
        if is_extended:
            diff.primary_key = wanted.primary_key
            if live.primary_key:
                diff.drop_keys.append(live.primary_key)
            line = DiffLine("~", "primary key", _names(live.primary_key), _names(wanted.primary_key))
            diff.lines.append(line)
        elif not (scd2_conversion.keeps_versions(live) and not scd2_conversion.may_keep_versions(wanted)):
            _refuse_other_primary_key(dialect, diff)
    for group in unique_groups(wanted):
        if frozenset(group) in stored:
            continue
        if not _refuse_duplicates(dialect, diff, group, ask):
            diff.add_unique.append(group)
            diff.lines.append(DiffLine("+", f"unique {_names(group)}"))
    if diff.converts_to_scd2:
        becoming = [set(group) for group in (*unique_groups(wanted), wanted.primary_key)]
        for group in live.unique:
            if VALID_FROM in group:
                continue
            if {*group, VALID_FROM} in becoming or set(group) == set(matching.keys):
                diff.drop_keys.append(group)
            else:
                diff.refuse(
                    f"unique {_names(group)}",
                    f"the table is unique in {_names(group)}, so that a row could have one version only. "
                    "By hand: drop that constraint",
                    blocks=True,
                )
        if not any(set(group) - {VALID_FROM} <= set(matching.keys) for group in becoming):
            _refuse_duplicates(dialect, diff, matching.keys, ask)
        for other in live.referred_by:
            diff.refuse(
                "primary key",
                f"{other} refers to {wanted.label} by a foreign key, and a key will have several versions. "
                f"By hand: drop the foreign key of {other}",
                blocks=True,
            )


def _refuse_other_primary_key(dialect: SqlDialect, diff: TableDiff) -> None:
    wanted, live = diff.wanted, diff.live
    table = dialect.render(dialect.table(wanted.schema, wanted.name))
    clauses = [live.drop_clauses[live.primary_key]] if live.primary_key in live.drop_clauses else []
    if wanted.primary_key:
        clauses.append(f"ADD PRIMARY KEY {column_list(dialect, wanted.primary_key)}")
    hint = f". By hand: {dialect.manual_statement(table, ', '.join(clauses))}" if clauses else ""
    diff.refuse(
        "primary key",
        f"the primary key is {_names(live.primary_key)}, declared as {_names(wanted.primary_key)}{hint}",
    )


def _refuse_duplicates(dialect: SqlDialect, diff: TableDiff, group: Sequence[str], ask: FetchRows) -> bool:
    """Refuse a unique key that existing rows violate, and name some of them."""
    have = {c.name for c in diff.live.columns}
    known = [name for name in group if name in have]
    if not known or (len(known) < len(group) and not diff.converts_to_scd2):
        return False  # an added column is null in every row
    if any(set(key) <= set(known) for key in (diff.live.primary_key, *diff.live.unique) if key):
        return False
    types = {c.name: c.type for c in diff.wanted.columns}
    keys = [dialect.comparable(column(n), types[n]) for n in known]
    filled = [exp.not_(exp.Is(this=column(n), expression=exp.Null())) for n in known]
    several = exp.GT(this=exp.Count(this=exp.Star()), expression=exp.Literal.number(1))
    table = dialect.table(diff.wanted.schema, diff.wanted.name)
    found = ask(
        exp.select(*[k.copy() for k in keys])
        .from_(table)
        .where(*filled)
        .group_by(*[k.copy() for k in keys])
        .having(several)
        .limit(_MAX_SHOWN)
    )
    if not found:
        return False
    shown = ", ".join("(" + ", ".join(map(repr, row)) + ")" for row in found)
    difference = f"{diff.wanted.label} has several rows with one {_names(known)}: {shown}"
    diff.refuse(f"unique {_names(known)}", f"{difference}. By hand: delete all but one of each", blocks=True)
    return True


def _names(group: Sequence[str]) -> str:
    return f"({', '.join(group)})"


# ------------------------------------------------------------------ hashes


def _plan_rehash(dialect: SqlDialect, diff: TableDiff, matching: Matching) -> None:
    """Hash rows again when an integer column becomes ``Numeric``; other widening keeps the hashes."""
    if diff.converts_to_scd2 or ROW_HASH not in {c.name for c in diff.live.columns}:
        return
    if ROW_HASH not in diff.wanted.column_names:
        return
    before = {c.name: c.type for c in diff.live.columns}
    changed = [c for c in diff.widened if TAGS[c.type.kind] != TAGS[before[c.name].kind]]
    if any(c.name in matching.compare for c in changed):
        diff.rehash = scd2_conversion.live_row_hash(dialect, diff.wanted, diff.live, matching.compare)
