"""SQLite's SQL dialect: names, typed constants, and CHECKs for limits that SQLite ignores."""

from __future__ import annotations

import decimal
from collections.abc import Mapping
from typing import Any

from sqlglot import exp

from ematix_flow.backends.sql.session import SqlDialect
from ematix_flow.backends.sqlite import column_types
from ematix_flow.backends.sqlite.canonical_sql import canonical_value
from ematix_flow.backends.sqlite.column_types import EXACT_DIGITS, is_exact_number
from ematix_flow.backends.sqlite.scd2_functions import row_hash_call, shifted_call
from ematix_flow.backends.sqlite.values import parse_value, to_stored
from ematix_flow.errors import Unsupported
from ematix_flow.spec.tables import ColumnSpec
from ematix_flow.spec.types import INTEGER_BITS, DataType
from ematix_flow.strategies.row_hash import Columns
from ematix_flow.strategies.sql import column as column_tree
from ematix_flow.strategies.sql import fill_template, identifier, table_as, with_alias

SEPARATOR = "__"


def table_name(schema: str | None, name: str) -> str:
    """SQLite has no schemas: the schema becomes the first part of the table's name, except ``main``."""
    return name if schema in (None, "main") else f"{schema}{SEPARATOR}{name}"


class SQLiteDialect(SqlDialect):
    """SQL of strategies, DDL and control tables for SQLite."""

    name = "sqlite"

    def table(self, schema: str | None, name: str) -> exp.Table:
        # with its database, so that it never means an attached staging file
        return exp.Table(this=identifier(table_name(schema, name)), db=identifier("main"))

    def native_type(self, data_type: DataType) -> str:
        return column_types.native_type(data_type)

    def canonical_type(self, native: str) -> DataType | None:
        return column_types.canonical_type(native)

    def can_hold(self, declared: DataType, live: DataType, native: str | None) -> bool:
        return column_types.holds(declared, column_types.native_type(live) if native is None else native)

    def literal(self, value: Any, data_type: DataType) -> exp.Expr:
        if value is None:
            return exp.Null()
        if data_type.kind == "numeric":
            return _number(value, data_type)
        kept = to_stored(value, data_type)
        if isinstance(kept, bytes):
            return exp.HexString(this=kept.hex())
        if isinstance(kept, int | float):
            return exp.Literal.number(repr(kept))
        if "\x00" in kept:  # a NUL ends SQL text
            return exp.cast(exp.HexString(this=kept.encode().hex()), "TEXT", dialect=self.name)
        return exp.Literal.string(kept)

    def comparable(self, column: exp.Expr, data_type: DataType) -> exp.Expr:
        return column

    def range_operand(self, column: exp.Expr, data_type: DataType) -> exp.Expr:
        return canonical_value(column, data_type, column.name)

    def as_timestamp_tz(self, column: exp.Expr, data_type: DataType) -> exp.Expr:
        rest = {"timestamp_tz": "", "timestamp": "+00:00", "date": " 00:00:00.000000+00:00"}[data_type.kind]
        return exp.paren(fill_template(f"v || '{rest}'", column, self.name)) if rest else column

    def add_seconds(self, moment: exp.Expr, seconds: float) -> exp.Expr:
        return shifted_call(moment, seconds)

    def row_hash(self, columns: Columns) -> exp.Expr:
        return row_hash_call(columns)

    def delete_from(
        self, target: exp.Table, source: exp.Table, on: Mapping[str, str], condition: exp.Expr | None
    ) -> exp.Expr:
        """SQLite has no USING: an IN list of keys uses the target's index."""
        found = exp.select(*[column_tree(theirs, "s") for theirs in on.values()]).from_(table_as(source, "s"))
        if condition is not None:
            found = found.where(condition)
        mine: list[exp.Expr] = [column_tree(name) for name in on]
        within = exp.In(
            this=exp.Tuple(expressions=mine) if len(mine) > 1 else mine[0], query=exp.Subquery(this=found)
        )
        return exp.Delete(this=target.copy(), where=exp.Where(this=within))

    def to_python(self, value: Any, data_type: DataType) -> Any:
        return parse_value(value, data_type)

    def column_constraint(self, spec: ColumnSpec) -> str:
        kind, name = spec.type.kind, spec.name
        if kind in INTEGER_BITS:
            limit = 1 << (INTEGER_BITS[kind] - 1)
            rule = f"{name} is a whole number of {INTEGER_BITS[kind]} bits"
            within = "" if kind == "big_int" else f" AND {{v}} BETWEEN {-limit} AND {limit - 1}"
            return self._check(rule, "typeof({v}) = 'integer'" + within, name)
        if kind == "boolean":
            return self._check(f"{name} is 0 or 1", "{v} IN (0, 1)", name)
        if kind == "string":
            rule = f"{name} has at most {spec.type.length} characters"
            return self._check(rule, f"length({{v}}) <= {spec.type.length}", name)
        if kind in ("json", "jsonb"):
            return self._check(f"{name} is JSON", "json_valid({v})", name)
        return ""

    def manual_statement(self, table: str, clauses: str) -> str:
        if clauses.startswith("ADD COLUMN "):
            return super().manual_statement(table, clauses)
        return f"create a new table as declared, copy the rows of {table} to it, drop {table} and rename it"

    def convert_value(self, value: exp.Expr, item: ColumnSpec) -> exp.Expr:
        return canonical_value(value, item.type, item.name)

    def _check(self, rule: str, condition: str, column: str) -> str:
        """A constraint whose name is the error message when it fails."""
        quoted = self.quote(column)
        tested = condition.replace("{v}", quoted)
        return f"CONSTRAINT {self.quote(rule)} CHECK ({quoted} IS NULL OR ({tested}))"

    def select_canonical(self, rows: exp.Subquery, columns: tuple[ColumnSpec, ...]) -> exp.Select:
        """The declared columns of a subquery, each in canonical form."""
        # qualified, because SQLite treats an unknown unqualified "name" as text
        chosen = [
            exp.alias_(canonical_value(column_tree(c.name, "rows"), c.type, c.name), c.name, quoted=True)
            for c in columns
        ]
        return exp.select(*chosen).from_(with_alias(rows, "rows"))


def require_orderable_type(data_type: DataType) -> None:
    """Refuse a long Numeric: it is stored as text, which does not sort as numbers."""
    if data_type.kind == "numeric" and not is_exact_number(data_type):
        raise Unsupported(
            f"SQLite keeps {data_type} as text, which it cannot order as numbers",
            next_step=f"declare at most {EXACT_DIGITS} digits, or choose another watermark column",
        )


def _number(value: decimal.Decimal, data_type: DataType) -> exp.Expr:
    """SQLite may parse ``0.1`` to another than the nearest double; a quotient of integers is exact."""
    require_orderable_type(data_type)
    kept = to_stored(value, data_type)
    if isinstance(kept, int):
        return exp.Literal.number(str(kept))
    scale = data_type.scale or 0
    unscaled = exp.cast(exp.Literal.number(str(int(value.scaleb(scale)))), "REAL", dialect="sqlite")
    power = exp.cast(exp.Literal.number(str(10**scale)), "REAL", dialect="sqlite")
    return exp.Paren(this=exp.Div(this=unscaled, expression=power))
