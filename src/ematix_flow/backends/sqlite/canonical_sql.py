"""SQL that converts a loosely typed SQLite value to the canonical form, inside the database.

A same-database load follows the rules of a load through Arrow. A value in canonical form is taken unchanged,
by conditions that SQLite checks itself. Any other value goes through `values.parse_value` in a SQL function
of the connection, which converts or refuses it.
"""

from __future__ import annotations

import json

from sqlglot import exp

from ematix_flow.backends.sqlite.column_types import is_exact_number
from ematix_flow.backends.sqlite.value_function import FUNCTION
from ematix_flow.spec.types import INTEGER_BITS, DataType
from ematix_flow.strategies.sql import fill_template

_HEX, _DIGIT = "[0-9a-f]", "[0-9]"
_UUID = "-".join(_HEX * count for count in (8, 4, 4, 4, 12))
_MOMENT = f"{_DIGIT * 4}-{_DIGIT * 2}-{_DIGIT * 2} {_DIGIT * 2}:{_DIGIT * 2}:{_DIGIT * 2}.{_DIGIT * 6}"


def canonical_value(column: exp.Expr, data_type: DataType, name: str) -> exp.Expr:
    """The column's value in the canonical form of this type; NULL stays NULL."""
    call = exp.Anonymous(
        this=FUNCTION,
        expressions=[
            column.copy(),
            exp.Literal.string(json.dumps(data_type.to_json(), sort_keys=True)),
            exp.Literal.string(name),
        ],
    )
    branches = [
        exp.If(
            this=fill_template(f"v IS NULL OR ({_is_canonical(data_type)})", column, "sqlite"),
            true=column.copy(),
        )
    ]
    if data_type.kind in ("timestamp", "timestamp_tz"):  # the format of SQLite's datetime()
        zone = "+00:00" if data_type.kind == "timestamp_tz" else ""
        whole_seconds = fill_template("typeof(v) = 'text' AND v = datetime(v, '+0 days')", column, "sqlite")
        branches.append(
            exp.If(this=whole_seconds, true=fill_template(f"v || '.000000{zone}'", column, "sqlite"))
        )
    return exp.Case(ifs=branches, default=call)


def _is_canonical(data_type: DataType) -> str:
    """A condition on ``v`` that is true only for values in canonical form, and for nearly all of them.

    SQLite checks the calendar only when it calculates, so the condition adds ``+0 days``.
    """
    kind = data_type.kind
    if kind in INTEGER_BITS:
        limit = 1 << (INTEGER_BITS[kind] - 1)
        within = f" AND v BETWEEN {-limit} AND {limit - 1}" if kind != "big_int" else ""
        return "typeof(v) = 'integer'" + within
    if is_exact_number(data_type):
        scale, whole = data_type.scale or 0, (data_type.precision or 0) - (data_type.scale or 0)
        power = f"CAST({10**scale} AS REAL)"
        number = f"typeof(v) = 'integer' OR (typeof(v) = 'real' AND round(v * {power}) / {power} = v)"
        return f"typeof(v) IN ('integer', 'real') AND abs(v) < {10**whole} AND ({number})"
    return {
        "float": "typeof(v) = 'real' AND abs(v) < 3e38",
        "double": "typeof(v) = 'real'",
        "boolean": "typeof(v) = 'integer' AND v IN (0, 1)",
        "text": "typeof(v) = 'text'",
        "string": f"typeof(v) = 'text' AND length(v) <= {data_type.length}",
        "json": "typeof(v) = 'text'",
        "jsonb": "typeof(v) = 'text'",
        "bytes": "typeof(v) = 'blob'",
        "date": "typeof(v) = 'text' AND v = date(v, '+0 days') AND v >= '0001'",
        "timestamp": f"v GLOB '{_MOMENT}' AND v LIKE datetime(v, '+0 days') || '%' AND v >= '0001'",
        "timestamp_tz": f"v GLOB '{_MOMENT}+00:00' AND v LIKE datetime(v, '+0 days') || '%' AND v >= '0001'",
        "uuid": f"v GLOB '{_UUID}'",
    }.get(kind, "0")  # a long Numeric: only the function can check its text
