"""PostgreSQL's spelling of what normalisers need."""

from __future__ import annotations

from sqlglot import exp

from ematix_flow.spec.portable_regex import translate
from ematix_flow.spec.types import DataType
from ematix_flow.strategies.functions.base import WHITESPACE, SqlFunctions, call, number, text

_TYPES = {
    "small_int": "SMALLINT",
    "integer": "INTEGER",
    "big_int": "BIGINT",
    "float": "REAL",
    "double": "DOUBLE PRECISION",
    "boolean": "BOOLEAN",
    "text": "TEXT",
    "string": "TEXT",
    "date": "DATE",
    "timestamp": "TIMESTAMP",
    "timestamp_tz": "TIMESTAMPTZ",
    "json": "JSON",
    "jsonb": "JSONB",
    "uuid": "UUID",
    "bytes": "BYTEA",
}


class PostgresFunctions(SqlFunctions):
    name = "postgres"
    flavour = "postgres"
    folds_case = False

    def fence(self, select: exp.Select) -> exp.Select:
        return select.offset(0)

    def type_name(self, data_type: DataType) -> str:
        if data_type.kind == "numeric":
            return f"NUMERIC({data_type.precision}, {data_type.scale})"
        return _TYPES[data_type.kind]

    def trim(self, tree: exp.Expression) -> exp.Expression:
        return call("BTRIM", tree, text(WHITESPACE))

    def matches(self, tree: exp.Expression, pattern: str) -> exp.Expression:
        return exp.RegexpLike(this=tree, expression=text(translate(pattern, self.flavour)))

    def round(self, tree: exp.Expression, digits: int, data_type: DataType | None) -> exp.Expression:
        if data_type is None:
            return call("ROUND", exp.Cast(this=tree, to=exp.DataType.build("NUMERIC")), number(digits))
        if data_type.kind in ("float", "double"):
            exact = exp.Cast(this=self.to_text(tree), to=exp.DataType.build("NUMERIC"))
            return self.cast(call("ROUND", exact, number(digits)), data_type)
        return call("ROUND", tree, number(digits))

    def raise_error(self, message: exp.Expression, data_type: DataType) -> exp.Expression:
        # Postgres has no function that fails: a failing cast shows its text in the error
        kind = "big_int" if data_type.kind in ("text", "string", "bytes", "json", "jsonb") else data_type.kind
        failing = self.cast(message, data_type if kind == data_type.kind else DataType(kind))
        return failing if kind == data_type.kind else self.cast(failing, DataType("text"))
