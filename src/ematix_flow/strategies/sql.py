"""The SQL dialect that strategies need, and the steps that they return.

A strategy turns rows and a table into a list of statements, built as trees. The target runs them inside its
one transaction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, Protocol, TypeVar

import sqlglot
from sqlglot import exp

from ematix_flow.spec.generated_names import internal_name
from ematix_flow.spec.tables import BATCH_ID, LOADED_AT, TableSpec
from ematix_flow.spec.types import DataType
from ematix_flow.spec.watermarks import Watermark
from ematix_flow.strategies.matching import Matching
from ematix_flow.strategies.shrink_limit import ShrinkLimit

RowSource = TypeVar("RowSource", exp.Table, exp.Subquery)


class StrategyDialect(Protocol):
    """The part of a backend's SQL that differs between systems."""

    name: str

    def table(self, schema: str | None, name: str) -> exp.Table: ...

    def literal(self, value: Any, data_type: DataType) -> exp.Expr:
        """A typed constant. The value is never a piece of SQL."""
        ...

    def comparable(self, column: exp.Expr, data_type: DataType) -> exp.Expr:
        """The column in a form that can be grouped and compared (JSON as text, for one)."""
        ...

    def range_operand(self, column: exp.Expr, data_type: DataType) -> exp.Expr:
        """A source's own column in the form that `literal` is compared with: loose text made canonical."""
        return column

    def with_one_collation(self, column: exp.Expr, data_type: DataType) -> exp.Expr:
        """A staged or a stored value in a form in which one CASE can hold both."""
        return column

    def as_timestamp_tz(self, column: exp.Expr, data_type: DataType) -> exp.Expr:
        """A timestamp or date as a ``timestamp_tz``: what has no zone is UTC."""
        ...

    def add_seconds(self, moment: exp.Expr, seconds: float) -> exp.Expr:
        """A ``timestamp_tz`` so many seconds later, exact to the microsecond."""
        ...

    def row_hash(self, columns: Sequence[tuple[str, DataType, exp.Expr]]) -> exp.Expr:
        """The hash of these values as `strategies.row_hash` defines it, 32 bytes, the same everywhere."""
        ...

    def update_from(
        self,
        target: exp.Table,
        source: exp.Table,
        sets: Mapping[str, exp.Expr],
        condition: exp.Expr,
    ) -> exp.Expr:
        """UPDATE of the target, called ``t``, with values of rows of the source, called ``s``."""
        ...

    def delete_from(
        self, target: exp.Table, source: exp.Table, on: Mapping[str, str], condition: exp.Expr | None
    ) -> exp.Expr:
        """DELETE of target rows whose columns equal those of a source row, ``{target: source}``.

        ``condition`` is about the source, called ``s``.
        """
        ...


@dataclass(frozen=True)
class StrategyStep:
    """One statement of a strategy and which count its affected rows belong to."""

    action: Literal["insert", "update", "delete", "work"]
    statement: exp.Expr


@dataclass(frozen=True)
class RowTally:
    """A query that counts the rows with one outcome. It runs only while rows without an outcome remain."""

    fate: Literal["brought", "outranked"]
    query: exp.Expr


@dataclass(frozen=True)
class IncomingRows:
    """The rows of this batch: a SELECT of the declared columns, and the load's stamp.

    ``work`` holds the strategy's work tables by name; they exist and are empty.
    """

    select: exp.Expr
    run_id: str
    loaded_at: Any
    low: Watermark | None = None
    matching: Matching = field(default_factory=Matching)
    work: Mapping[str, exp.Table] = field(default_factory=dict)
    into_empty: bool = False  # whether the target has no rows yet
    shrinking: ShrinkLimit | None = None


def identifier(name: str) -> exp.Identifier:
    return exp.Identifier(this=name, quoted=True)


def column(name: str, alias: str | None = None) -> exp.Column:
    """A column, by itself or of the rows that `table_as`, `subquery` or `with_alias` gave this alias."""
    return exp.Column(this=identifier(name), table=alias_name(alias) if alias else None)


def alias_name(alias: str) -> exp.Identifier:
    """The short name that a strategy gives to rows, as SQL has it: never equal to a column of the user's.

    Spark takes ``t.x`` for the field ``x`` of a column ``t`` where there is one.
    """
    return identifier(internal_name(alias))


def with_alias(rows: RowSource, alias: str) -> RowSource:
    """The rows under an alias, in place."""
    rows.set("alias", exp.TableAlias(this=alias_name(alias)))
    return rows


def fill_template(template: str, value: exp.Expr, dialect: str) -> exp.Expr:
    """One of our SQL templates, with the column ``v`` replaced by ``value``."""
    tree = _template(template, dialect).copy()
    for node in [n for n in tree.find_all(exp.Column) if n.name == "v"]:
        if node is tree:
            return value.copy()
        node.replace(value.copy())
    return tree


@lru_cache(maxsize=256)
def _template(template: str, dialect: str) -> exp.Expr:
    tree = sqlglot.parse_one(template, dialect=dialect)
    for node in tree.walk():
        node._meta = None  # positions in the text are not needed, and make each copy slower
    return tree


def concat_texts(parts: Sequence[exp.Expr]) -> exp.Expr:
    """The texts joined with ``||``."""
    text = parts[0]
    for part in parts[1:]:
        text = exp.DPipe(this=text, expression=part, safe=True)
    return exp.paren(text)


def verbatim(sql: str) -> exp.Subquery:
    """The user's unchanged SQL as a subquery. The newline ends a trailing comment."""
    return exp.Subquery(this=exp.Var(this=f"\n{sql}\n"))


def table_as(table: exp.Table, alias: str) -> exp.Table:
    return with_alias(table.copy(), alias)


def subquery(select: exp.Expr, alias: str) -> exp.Subquery:
    # the first use takes the tree itself: copies are most of the cost of a small load
    query = select if select.parent is None else select.copy()
    return with_alias(exp.Subquery(this=query), alias)


def equal_keys(keys: Sequence[str], left: str, right: str) -> list[exp.Expr]:
    """Compares key by key; keys are never concatenated."""
    return [exp.EQ(this=column(k, left), expression=column(k, right)) for k in keys]


def ascending(tree: exp.Expr) -> exp.Ordered:
    """Order by a value that is never null. The null order is given because some databases need it."""
    return exp.Ordered(this=tree, nulls_first=True)


def load_column_values(dialect: StrategyDialect, incoming: IncomingRows) -> dict[str, exp.Expr]:
    """The values of the load columns of this load."""
    return {
        LOADED_AT: dialect.literal(incoming.loaded_at, DataType("timestamp_tz")),
        BATCH_ID: dialect.literal(incoming.run_id, DataType("uuid")),
    }


def load_columns_of(
    dialect: StrategyDialect, table: TableSpec, incoming: IncomingRows
) -> dict[str, exp.Expr]:
    """The load columns of this table, with their values."""
    if not table.stamped:
        return {}
    return {k: v for k, v in load_column_values(dialect, incoming).items() if k not in table.column_names}


def insert_into(table: exp.Table, columns: Sequence[str], select: exp.Expr) -> exp.Insert:
    into = exp.Schema(this=table.copy(), expressions=[identifier(c) for c in columns])
    return exp.Insert(this=into, expression=select)


def insert_rows(
    dialect: StrategyDialect, table: TableSpec, incoming: IncomingRows, condition: exp.Expr | None = None
) -> StrategyStep:
    """INSERT of the incoming rows with their load columns."""
    names: Sequence[str] = table.column_names
    values: list[exp.Expr] = [column(n, "s") for n in names]
    columns = list(names)
    for name, value in load_columns_of(dialect, table, incoming).items():
        columns.append(name)
        values.append(value)
    select = exp.select(*values).from_(subquery(incoming.select, "s"))
    if condition is not None:
        select = select.where(condition)
    return StrategyStep("insert", insert_into(dialect.table(table.schema, table.name), columns, select))
