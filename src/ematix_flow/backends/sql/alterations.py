"""The changes of a table as ALTER statements, for a database that supports all of them.

When each change commits by itself, a crash may leave any prefix of the list made. The next run compares the
tables again and makes the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from sqlglot import exp

from ematix_flow.backends.base import ChangeAction, TableChange
from ematix_flow.backends.sql.create_table import column_list
from ematix_flow.backends.sql.session import SqlDialect
from ematix_flow.backends.sql.table_diff import TableDiff
from ematix_flow.spec.tables import IS_CURRENT, ROW_HASH, VALID_FROM, ColumnSpec
from ematix_flow.strategies.sql import column, identifier


class CannotAlter(Exception):
    """The changes would lose something. The message says why and what to do by hand."""


def alter_table_changes(dialect: SqlDialect, diff: TableDiff) -> list[TableChange]:
    label = diff.wanted.label
    table = dialect.render(dialect.table(diff.wanted.schema, diff.wanted.name))
    there = {c.name: c for c in diff.live.columns}

    def change(action: ChangeAction, subject: str, *clauses: str) -> TableChange:
        return TableChange(action, subject, f"ALTER TABLE {table} {', '.join(clauses)}")

    def fill(values: Mapping[str, exp.Expr], condition: exp.Expr) -> TableChange:
        return TableChange("fill", label, _update(dialect, diff, values, condition))

    changes = []
    for item in diff.added:
        declared = replace(item, nullable=True) if item.name in diff.first_version_values else item
        changes.append(change("add_column", f"{label}.{item.name}", dialect.add_column_clause(declared)))
    if diff.rehash is not None:  # before the type changes: afterwards no comparison finds it missing
        is_hashed = exp.not_(exp.Is(this=column(ROW_HASH), expression=exp.Null()))
        changes.append(fill({ROW_HASH: diff.rehash}, is_hashed))
    for item in diff.widened:
        kept = replace(item, nullable=there[item.name].nullable)
        changes.append(change("widen_column", f"{label}.{item.name}", dialect.change_type_clause(kept)))
    for item in diff.relaxed:
        changes.append(change("relax_null", f"{label}.{item.name}", dialect.nullability_clause(item)))
    if diff.converts_to_scd2:
        unfilled = exp.or_(
            *[exp.Is(this=column(n), expression=exp.Null()) for n in (VALID_FROM, IS_CURRENT, ROW_HASH)]
        )
        changes.append(fill(diff.first_version_values, unfilled))
        changes.append(change("change_key", label, *_scd2_key_clauses(dialect, diff)))
        return changes
    for group in diff.add_unique:
        changes.append(change("add_unique", label, f"ADD UNIQUE {column_list(dialect, group)}"))
    return changes


def _scd2_key_clauses(dialect: SqlDialect, diff: TableDiff) -> list[str]:
    """The clauses of one statement, so that the table always has its keys."""
    filled: list[ColumnSpec] = [
        c for c in diff.added if c.name in diff.first_version_values and not c.nullable
    ]
    clauses = [dialect.nullability_clause(c) for c in (*filled, *diff.tightened)]
    for group in diff.drop_keys:
        if group not in diff.live.drop_clauses:
            shown = ", ".join(group)
            raise CannotAlter(
                f"the table is unique in ({shown}) by an index without a constraint. By hand: drop that index"
            )
        clauses.append(diff.live.drop_clauses[group])
    if diff.primary_key is not None:
        clauses.append(f"ADD PRIMARY KEY {column_list(dialect, diff.primary_key)}")
    return clauses + [f"ADD UNIQUE {column_list(dialect, group)}" for group in diff.add_unique]


def _update(dialect: SqlDialect, diff: TableDiff, values: Mapping[str, exp.Expr], condition: exp.Expr) -> str:
    assigned = [exp.EQ(this=exp.column(identifier(n)), expression=v.copy()) for n, v in values.items()]
    table = dialect.table(diff.wanted.schema, diff.wanted.name)
    return dialect.render(exp.Update(this=table, expressions=assigned, where=exp.Where(this=condition)))
