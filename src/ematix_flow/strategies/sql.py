"""What strategies need of a SQL dialect, and the shapes they give back.

A strategy turns "these rows, that table" into a list of statements built as trees; the target runs
them inside its one transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from sqlglot import exp

from ematix_flow.spec.tables import BATCH_ID, LOADED_AT, TableSpec
from ematix_flow.spec.types import DataType
from ematix_flow.spec.watermarks import Watermark


class Dialect(Protocol):
    """The part of a backend's SQL that differs from system to system."""

    name: str

    def table(self, schema: str | None, name: str) -> exp.Table: ...

    def literal(self, value: Any, data_type: DataType) -> exp.Expr:
        """A typed constant. The value is ours or typed, never a piece of SQL."""
        ...

    def comparable(self, column: exp.Expr, data_type: DataType) -> exp.Expr:
        """The column in a form that can be grouped and compared (JSON as text, for one)."""
        ...

    def ranged(self, column: exp.Expr, data_type: DataType) -> exp.Expr:
        """A source's own column in the form that `literal` is compared with: loose text made canonical."""
        return column


@dataclass(frozen=True)
class Step:
    """One statement of a strategy and which count its affected rows belong to."""

    action: Literal["insert", "update", "delete"]
    statement: exp.Expr


@dataclass(frozen=True)
class Incoming:
    """The rows of this batch: a SELECT of the declared columns, and the load's stamp."""

    select: exp.Expr
    run_id: str
    loaded_at: Any
    low: Watermark | None = None


def identifier(name: str) -> exp.Identifier:
    return exp.to_identifier(name, quoted=True)


def column(name: str, table: str | None = None) -> exp.Column:
    return exp.column(identifier(name), table=identifier(table) if table else None)


def verbatim(sql: str) -> exp.Subquery:
    """The user's SQL as a subquery, not a character changed; the newline ends a trailing comment."""
    return exp.Subquery(this=exp.Var(this=f"\n{sql}\n"))


def insert_rows(
    dialect: Dialect, table: TableSpec, incoming: Incoming, condition: exp.Expr | None = None
) -> Step:
    """INSERT of the incoming rows with their load columns."""
    names: Sequence[str] = table.column_names
    values: list[exp.Expr] = [column(n, "s") for n in names]
    stamps = {
        LOADED_AT: dialect.literal(incoming.loaded_at, DataType("timestamp_tz")),
        BATCH_ID: dialect.literal(incoming.run_id, DataType("uuid")),
    }
    columns = list(names)
    for name, value in stamps.items():
        if name not in names:
            columns.append(name)
            values.append(value)
    select = exp.select(*values).from_(
        exp.Subquery(this=incoming.select, alias=exp.TableAlias(this=identifier("s")))
    )
    if condition is not None:
        select = select.where(condition)
    into = exp.Schema(
        this=dialect.table(table.schema, table.name), expressions=[identifier(c) for c in columns]
    )
    return Step("insert", exp.Insert(this=into, expression=select))
