"""Truncate: replace every row by the batch, keeping the table itself.

Delete and insert in one transaction: grants, views, indexes, foreign keys and triggers stay, and a
concurrent reader sees all old or all new rows. Too large a drop in rows stops the load: see
`shrink_limit`.
"""

from __future__ import annotations

from sqlglot import exp

from ematix_flow.spec.tables import TableSpec
from ematix_flow.strategies.sql import IncomingRows, StrategyDialect, StrategyStep, insert_rows


def steps(dialect: StrategyDialect, table: TableSpec, incoming: IncomingRows) -> list[StrategyStep]:
    delete = exp.Delete(this=dialect.table(table.schema, table.name))
    return [StrategyStep("delete", delete), insert_rows(dialect, table, incoming)]
