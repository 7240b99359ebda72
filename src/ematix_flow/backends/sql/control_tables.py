"""The ledger and the watermarks: the two tables that a target keeps next to the data, and their SQL.

`RelationalTarget.change_table` creates them, before the first load. MySQL has its own statements for that, in
`mysql.create_table`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sqlglot import exp

from ematix_flow.backends.base import TableChange
from ematix_flow.backends.sql.create_table import create_table_sql
from ematix_flow.backends.sql.session import SqlDialect, SqlSession
from ematix_flow.errors import NameRefused
from ematix_flow.spec.tables import ColumnSpec, TableSpec
from ematix_flow.spec.types import DataType
from ematix_flow.strategies.sql import column, identifier

CONTROL_SCHEMA = "ematix_flow"
STAGING_SCHEMA = "ematix_flow_staging"

TIMESTAMP = DataType("timestamp_tz")
_TEXT, _COUNT = DataType("text"), DataType("big_int")

LEDGER = TableSpec(
    CONTROL_SCHEMA,
    "ledger",
    (
        ColumnSpec("pipeline", _TEXT, primary_key=True),
        ColumnSpec("target", _TEXT, primary_key=True),
        ColumnSpec("batch_key", _TEXT, primary_key=True),
        ColumnSpec("run_id", _TEXT),
        ColumnSpec("source_from", _TEXT, nullable=True),
        ColumnSpec("source_to", _TEXT, nullable=True),
        ColumnSpec("rows_in", _COUNT),
        ColumnSpec("rows_inserted", _COUNT),
        ColumnSpec("rows_updated", _COUNT),
        ColumnSpec("rows_deleted", _COUNT),
        ColumnSpec("committed_at", TIMESTAMP),
    ),
)
WATERMARKS = TableSpec(
    CONTROL_SCHEMA,
    "watermarks",
    (
        ColumnSpec("pipeline", _TEXT, primary_key=True),
        ColumnSpec("target", _TEXT, primary_key=True),
        ColumnSpec("column_name", _TEXT, primary_key=True),
        ColumnSpec("value_type", _TEXT),
        ColumnSpec("value", _TEXT),
        ColumnSpec("updated_at", TIMESTAMP),
    ),
)


def create_control_tables(
    dialect: SqlDialect,
    session: SqlSession,
    schema_changes: Callable[[SqlSession, TableSpec], Sequence[TableChange]],
) -> None:
    """Create the ledger, the watermarks and their schema, which ``schema_changes`` finds, where missing."""
    for control in (LEDGER, WATERMARKS):
        for change in schema_changes(session, control):
            session.execute(change.sql)
        session.execute(create_table_sql(dialect, control))


def refuse_control_table(dialect: SqlDialect, table: TableSpec) -> None:
    """Refuse to load the ledger, the watermarks or a staging table, under any of their names."""
    named = dialect.render(dialect.table(table.schema, table.name)).lower()
    kept = {
        dialect.render(dialect.table(each.schema, each.name)).lower(): meaning
        for each, meaning in ((LEDGER, "the ledger of committed batches"), (WATERMARKS, "the watermarks"))
    }
    if (table.schema or "").lower() in (CONTROL_SCHEMA, STAGING_SCHEMA):
        kept.setdefault(named, "its own records")
    if named in kept:
        raise NameRefused(
            f"{table.label} is where ematix-flow keeps {kept[named]}, and no pipeline can load it",
            where=table.where,
            state=f"{table.label} is unchanged",
            next_step="choose another schema or another name for the table",
        )


def select_control_sql(
    dialect: SqlDialect,
    table: TableSpec,
    names: Sequence[str],
    filters: Sequence[str],
    order: str | None = None,
    limit: int = 0,
) -> str:
    select = exp.select(*[column(n) for n in names]).from_(dialect.table(table.schema, table.name))
    for name in filters:
        select = select.where(exp.EQ(this=column(name), expression=exp.Placeholder(this=name)))
    if order:
        select = select.order_by(exp.Ordered(this=column(order), desc=True)).limit(limit)
    return dialect.render(select)


def insert_control_sql(dialect: SqlDialect, table: TableSpec, replace_on: Sequence[str] = ()) -> str:
    names = table.column_names
    schema = exp.Schema(
        this=dialect.table(table.schema, table.name), expressions=[identifier(n) for n in names]
    )
    values = exp.Values(expressions=[exp.Tuple(expressions=[exp.Placeholder(this=n) for n in names])])
    sql = dialect.render(exp.Insert(this=schema, expression=values))
    return sql + dialect.upsert_clause(names, replace_on) if replace_on else sql


def delete_control_sql(dialect: SqlDialect, control: TableSpec, filters: Sequence[str]) -> str:
    """DELETE of the rows whose columns equal these parameters."""
    equal = [exp.EQ(this=column(n), expression=exp.Placeholder(this=n)) for n in filters]
    return dialect.render(exp.delete(dialect.table(control.schema, control.name)).where(*equal))


def delete_old_batches_sql(dialect: SqlDialect, ledger: TableSpec) -> str:
    """DELETE of batches that committed before a time and whose keys match the pattern ``batches``."""
    mine = [exp.EQ(this=column(n), expression=exp.Placeholder(this=n)) for n in ("pipeline", "target")]
    old = exp.LT(this=column("committed_at"), expression=exp.Placeholder(this="committed_at"))
    of_streams = exp.Like(this=column("batch_key"), expression=exp.Placeholder(this="batches"))
    gone = exp.delete(dialect.table(ledger.schema, ledger.name)).where(*mine, old, of_streams)
    return dialect.render(gone)
