"""MySQL's SQL dialect: typed constants, joined updates, and the values of results."""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from sqlglot import exp

from ematix_flow.backends.mysql import column_types
from ematix_flow.backends.mysql.column_types import TIMESTAMP_TYPE
from ematix_flow.backends.mysql.row_hash import row_hash
from ematix_flow.backends.sql.session import SqlDialect
from ematix_flow.spec.tables import ColumnSpec
from ematix_flow.spec.types import INTEGER_BITS, DataType
from ematix_flow.strategies.row_hash import Columns
from ematix_flow.strategies.sql import column, identifier, table_as

_TEXTS = ("text", "string")
_JSONS = ("json", "jsonb")


class ServerVariant(Protocol):
    """What differs between MySQL and MariaDB."""

    @property
    def collation(self) -> str: ...

    @property
    def is_mariadb(self) -> bool: ...


class MySQLDialect(SqlDialect):
    """SQL of strategies, DDL and control tables for MySQL and MariaDB."""

    name = "mysql"

    def __init__(self, server: ServerVariant, collations: Mapping[str, str] | None = None) -> None:
        self._server = server
        self._collations = collations or {}

    def with_collations(self, collations: Mapping[str, str]) -> MySQLDialect:
        """A dialect whose table changes keep these character sets and collations of text columns."""
        return MySQLDialect(self._server, collations)

    @property
    def collation(self) -> str:
        return self._server.collation

    @property
    def is_mariadb(self) -> bool:
        return self._server.is_mariadb

    def table(self, schema: str | None, name: str) -> exp.Table:
        return exp.Table(this=identifier(name), db=identifier(schema) if schema else None)

    def render(self, tree: exp.Expr) -> str:
        """Placeholders in the driver's style; such statements contain no other percent sign."""
        if tree.find(exp.Placeholder):
            tree = tree.transform(
                lambda node: exp.Var(this=f"%({node.name})s") if isinstance(node, exp.Placeholder) else node
            )
        return super().render(tree)

    def upsert_clause(self, names: Sequence[str], key: Sequence[str]) -> str:
        quote = self.quote
        updates = ", ".join(f"{quote(n)} = VALUES({quote(n)})" for n in names if n not in key)
        return f" ON DUPLICATE KEY UPDATE {updates}"

    # -------------------------------------------------------------- types

    def native_type(self, data_type: DataType) -> str:
        return column_types.native_type(data_type)

    def canonical_type(self, native: str) -> DataType | None:
        return column_types.canonical_type(native)

    def can_hold(self, declared: DataType, live: DataType, native: str | None) -> bool:
        found = live if native is None else self.canonical_type(native)
        if found is None:
            return False
        if declared.kind in _JSONS:
            return found.kind in ("json", "text")  # MariaDB's JSON is text with a check
        if declared.kind == "timestamp_tz":
            return found.kind in ("timestamp", "timestamp_tz")
        return found == self.canonical_type(self.native_type(declared))

    def is_exact_collation(self, native: str, collation: str) -> bool:
        """Whether keys of this type and collation compare exactly, and can be compared with ours.

        MySQL does not compare two collations of one character set, even when both use code points.
        """
        return collation == self.collation or (native.startswith("char(") and collation.endswith("_bin"))

    # -------------------------------------------------------------- changing a table

    def add_column_clause(self, item: ColumnSpec) -> str:
        return f"ADD COLUMN {self._column_clause(item, self._exact_collation_clause)}"

    def change_type_clause(self, item: ColumnSpec) -> str:
        return f"MODIFY COLUMN {self._column_clause(item, self._collations.get(item.name))}"

    def conversion_clause(self, item: ColumnSpec) -> str:
        return f"MODIFY COLUMN {self._column_clause(item, self._exact_collation_clause)}"

    @property
    def _exact_collation_clause(self) -> str:
        return f"CHARACTER SET utf8mb4 COLLATE {self.collation}"

    def _column_clause(self, item: ColumnSpec, collated: str | None) -> str:
        """The column definition. Without ``collated`` a text column takes the table's default."""
        words = [self.quote(item.name), self.native_type(item.type)]
        if collated and item.type.kind in _TEXTS:
            words.append(collated)
        return " ".join([*words, "NULL" if item.nullable else "NOT NULL"])

    def nullability_clause(self, item: ColumnSpec) -> str:
        return self.change_type_clause(item)

    def convert_value(self, value: exp.Expr, item: ColumnSpec) -> exp.Expr:
        kind = item.type.kind
        if kind in INTEGER_BITS:
            return exp.cast(value, "SIGNED", dialect=self.name)
        if kind in ("float", "double"):
            return exp.Add(this=value, expression=exp.Literal.number("0e0"))
        name = self.native_type(item.type) if kind == "numeric" else "CHAR"
        return exp.cast(value, name, dialect=self.name)

    # -------------------------------------------------------------- values

    def literal(self, value: Any, data_type: DataType) -> exp.Expr:
        kind = data_type.kind
        if value is None:
            return exp.Null()
        if kind == "boolean":
            return exp.Boolean(this=bool(value))
        if kind in ("timestamp", "timestamp_tz"):
            return exp.cast(exp.Literal.string(_timestamp_text(value)), TIMESTAMP_TYPE, dialect=self.name)
        if kind == "date":
            return exp.cast(exp.Literal.string(value.isoformat()[:10]), "DATE", dialect=self.name)
        if isinstance(value, (bytes, bytearray)):
            return exp.Anonymous(this="UNHEX", expressions=[exp.Literal.string(bytes(value).hex())])
        if isinstance(value, (int, float, decimal.Decimal)):
            return _number(value)
        text = exp.Literal.string(str(value))
        return self._collate_exactly(text) if kind in _TEXTS else text

    def comparable(self, column: exp.Expr, data_type: DataType) -> exp.Expr:
        kind = data_type.kind
        if kind in _JSONS and not self.is_mariadb:
            return self._collate_exactly(exp.cast(column, "CHAR", dialect=self.name))
        return self._collate_exactly(column) if kind in (*_TEXTS, *_JSONS) else column

    def with_one_collation(self, column: exp.Expr, data_type: DataType) -> exp.Expr:
        return self.comparable(column, data_type)

    def range_operand(self, column: exp.Expr, data_type: DataType) -> exp.Expr:
        """Compare text by code point, not by the column's collation."""
        return self._collate_exactly(column) if data_type.kind in _TEXTS else column

    def _collate_exactly(self, text: exp.Expr) -> exp.Expr:
        utf8 = exp.DataType(this=exp.DataType.Type.CHARACTER_SET, kind=exp.Var(this="utf8mb4"))
        return exp.Collate(this=exp.Cast(this=text, to=utf8), expression=exp.Var(this=self.collation))

    def as_timestamp_tz(self, column: exp.Expr, data_type: DataType) -> exp.Expr:
        if data_type.kind in ("timestamp", "timestamp_tz"):
            return column
        return exp.cast(column, TIMESTAMP_TYPE, dialect=self.name)

    def add_seconds(self, moment: exp.Expr, seconds: float) -> exp.Expr:
        microseconds = exp.Literal.number(abs(round(seconds * 1_000_000)))
        interval = exp.Interval(this=microseconds, unit=exp.Var(this="MICROSECOND"))
        return exp.paren((exp.Add if seconds >= 0 else exp.Sub)(this=moment, expression=interval))

    def row_hash(self, columns: Columns) -> exp.Expr:
        return row_hash(columns, mariadb=self.is_mariadb)

    def to_python(self, value: Any, data_type: DataType) -> Any:
        if value is None:
            return None
        kind = data_type.kind
        if kind == "timestamp_tz":
            return value.replace(tzinfo=dt.timezone.utc)
        if kind == "boolean":
            return bool(value)
        if kind == "bytes":
            return bytes(value)
        return value

    # -------------------------------------------------------------- joined statements

    def update_from(
        self, target: exp.Table, source: exp.Table, sets: Mapping[str, exp.Expr], condition: exp.Expr
    ) -> exp.Expr:
        assigned = [exp.EQ(this=column(n, "t"), expression=v.copy()) for n, v in sets.items()]
        return exp.Update(this=_join_tables(target, source, condition), expressions=assigned)

    def delete_from(
        self, target: exp.Table, source: exp.Table, on: Mapping[str, str], condition: exp.Expr | None
    ) -> exp.Expr:
        """Uses the table's full name: an alias would need a default database, which the url may lack."""
        own = {"table": target.this, "db": target.args.get("db")}
        matches: list[exp.Expr] = [
            exp.EQ(this=exp.Column(this=identifier(mine), **own).copy(), expression=column(theirs, "s"))
            for mine, theirs in on.items()
        ]
        if condition is not None:
            matches.append(condition)
        both = target.copy()
        both.set("joins", [exp.Join(this=table_as(source, "s"), kind="INNER", on=exp.and_(*matches))])
        return exp.Delete(tables=[target.copy()], this=both)


def _join_tables(target: exp.Table, source: exp.Table, condition: exp.Expr) -> exp.Table:
    both = table_as(target, "t")
    both.set("joins", [exp.Join(this=table_as(source, "s"), kind="INNER", on=condition)])
    return both


def _number(value: float | decimal.Decimal) -> exp.Expr:
    text = format(value, "f") if isinstance(value, decimal.Decimal) else repr(value)
    tree = exp.Literal.number(text.lstrip("-"))
    return exp.Neg(this=tree) if text.startswith("-") else tree


def _timestamp_text(value: Any) -> str:
    if isinstance(value, dt.datetime):
        if value.tzinfo is not None:
            value = value.astimezone(dt.timezone.utc).replace(tzinfo=None)
        return str(value.isoformat(" ", "microseconds"))
    return str(value.isoformat())
