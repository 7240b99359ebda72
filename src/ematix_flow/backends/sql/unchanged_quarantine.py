"""Finds out that a load which reads its rows again would set aside what quarantine holds already."""

from __future__ import annotations

from collections import Counter

from sqlglot import exp

from ematix_flow.backends.base import Load
from ematix_flow.backends.sql.quarantine import delete_read_again
from ematix_flow.backends.sql.rule_checks import CheckedRows
from ematix_flow.backends.sql.session import SqlDialect, SqlSession
from ematix_flow.spec.expectations import RULE
from ematix_flow.spec.types import DataType
from ematix_flow.strategies.sql import column

_MOST_COMPARED = 10_000  # failing rows; a load with more of them sets all aside again


def are_in_quarantine(
    session: SqlSession, dialect: SqlDialect, load: Load, checked: CheckedRows, gated: exp.Table
) -> bool:
    """Whether the failing rows in ``gated`` are exactly those that the load would take out of quarantine."""
    gate = load.plan.gate
    if gate is None or not 0 < checked.quarantined <= _MOST_COMPARED:
        return False
    again = delete_read_again(load, gate, dialect)
    if again is None:
        return False
    types = {**{each.name: each.type for each in load.table.columns}, RULE: DataType("text")}

    def count_copies(rows: exp.Expr, condition: exp.Expr) -> Counter[str]:
        values = [dialect.as_fetchable(column(name), data_type) for name, data_type in types.items()]
        found = session.fetch(dialect.render(exp.select(*values).from_(rows.copy()).where(condition.copy())))
        return Counter(
            repr(
                [
                    None if value is None else dialect.to_python(value, data_type)
                    for value, data_type in zip(row, types.values(), strict=True)
                ]
            )
            for row in found
        )

    failed = exp.not_(exp.Is(this=column(RULE), expression=exp.Null()))
    return count_copies(gated, failed) == count_copies(again.this, again.args["where"].this)
