"""DuckDB's spelling of what normalisers need."""

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
    "double": "DOUBLE",
    "boolean": "BOOLEAN",
    "text": "TEXT",
    "string": "TEXT",
    "date": "DATE",
    "timestamp": "TIMESTAMP",
    "timestamp_tz": "TIMESTAMPTZ",
    "json": "JSON",
    "jsonb": "JSON",
    "uuid": "UUID",
    "bytes": "BLOB",
}
_WIDE = DataType("numeric", precision=38, scale=18)


class DuckDBFunctions(SqlFunctions):
    name = "duckdb"
    flavour = "re2"
    folds_case = True

    def type_name(self, data_type: DataType) -> str:
        if data_type.kind == "numeric":
            return f"DECIMAL({data_type.precision}, {data_type.scale})"
        return _TYPES[data_type.kind]

    def trim(self, tree: exp.Expression) -> exp.Expression:
        return call("TRIM", tree, text(WHITESPACE))

    def matches(self, tree: exp.Expression, pattern: str) -> exp.Expression:
        return call("REGEXP_MATCHES", tree, text(translate(pattern, self.flavour)))

    def round(self, tree: exp.Expression, digits: int, data_type: DataType | None) -> exp.Expression:
        if data_type is None or data_type.kind in ("float", "double"):
            exact = call("ROUND", self.decimal_of(tree, _WIDE), number(digits))
            return self.cast(exact, data_type or DataType("double"))
        return call("ROUND", tree, number(digits))

    def raise_error(self, message: exp.Expression, data_type: DataType) -> exp.Expression:
        return call("ERROR", message)
