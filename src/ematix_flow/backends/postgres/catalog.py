"""Reading a live table from PostgreSQL's catalog."""

from __future__ import annotations

from ematix_flow.backends.base import LiveTable
from ematix_flow.backends.postgres.dialect import PostgresDialect
from ematix_flow.backends.sql.session import SqlSession
from ematix_flow.errors import SchemaMismatch
from ematix_flow.spec.tables import ColumnSpec, TableSpec
from ematix_flow.spec.types import DataType

_RELATION = """
SELECT c.oid, c.relkind::text FROM pg_catalog.pg_class AS c WHERE c.oid = to_regclass(%(name)s)
"""
_COLUMNS = """
SELECT a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull,
       a.atthasdef OR a.attidentity <> '' OR a.attgenerated <> ''
FROM pg_catalog.pg_attribute AS a
WHERE a.attrelid = %(oid)s AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attnum
"""
_KEYS = """
SELECT i.indisprimary, array_agg(a.attname::text ORDER BY k.place),
       (SELECT o.conname FROM pg_catalog.pg_constraint AS o
        WHERE o.conindid = i.indexrelid AND o.conrelid = i.indrelid AND o.contype IN ('p', 'u'))
FROM pg_catalog.pg_index AS i
CROSS JOIN LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY AS k(attnum, place)
JOIN pg_catalog.pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
WHERE i.indrelid = %(oid)s AND i.indisunique AND i.indisvalid
  AND i.indpred IS NULL AND i.indexprs IS NULL AND k.place <= i.indnkeyatts
GROUP BY i.indexrelid, i.indrelid, i.indisprimary
ORDER BY i.indexrelid
"""
_PINNED = """
SELECT DISTINCT a.attname, w.ev_class::regclass::text
FROM pg_catalog.pg_depend AS d
JOIN pg_catalog.pg_rewrite AS w ON w.oid = d.objid
JOIN pg_catalog.pg_attribute AS a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid
WHERE d.classid = 'pg_catalog.pg_rewrite'::regclass AND d.refclassid = 'pg_catalog.pg_class'::regclass
  AND d.refobjid = %(oid)s AND d.refobjsubid > 0 AND w.ev_class <> %(oid)s
ORDER BY 2
"""
_REFERRING = """
SELECT DISTINCT o.conrelid::regclass::text FROM pg_catalog.pg_constraint AS o
WHERE o.confrelid = %(oid)s AND o.contype = 'f' ORDER BY 1
"""
_LOADABLE = ("r", "p", "f", "v")  # tables, partitioned and foreign ones, views that may be updatable
_KINDS = {"m": "a materialized view", "S": "a sequence", "i": "an index", "I": "an index", "c": "a type"}


def read_live_table(session: SqlSession, dialect: PostgresDialect, table: TableSpec) -> LiveTable | None:
    """The live table, or None. Names are looked up as quoted names: case matters."""
    name = dialect.render(dialect.table(table.schema, table.name))
    found = session.fetch(_RELATION, {"name": name})
    if not found:
        return None
    oid, kind = found[0]
    if kind not in _LOADABLE:
        raise SchemaMismatch(
            f"{table.label} is {_KINDS.get(kind, 'no table')} in the target",
            where=table.where,
            next_step="choose another name for the table",
        )
    keys = session.fetch(_KEYS, {"oid": oid})
    primary = tuple(next((names for is_primary, names, _ in keys if is_primary), ()))
    declared = set(table.with_load_columns().column_names)
    columns, native = [], {}
    for column, type_name, not_null, is_filled in session.fetch(_COLUMNS, {"oid": oid}):
        native[column] = type_name
        columns.append(
            ColumnSpec(
                column,
                # a type without a canonical one is shown by its native name
                dialect.canonical_type(type_name) or DataType("text"),
                # a load need not fill an undeclared column that has a default
                nullable=not not_null or (is_filled and column not in declared),
                primary_key=column in primary,
            )
        )
    unique = tuple(tuple(names) for is_primary, names, _ in keys if not is_primary)
    drops = {tuple(names): f"DROP CONSTRAINT {dialect.quote(owner)}" for _, names, owner in keys if owner}
    pinned = {name: f"the view {view} uses it" for name, view in session.fetch(_PINNED, {"oid": oid})}
    referring = tuple(name for (name,) in session.fetch(_REFERRING, {"oid": oid}))
    return LiveTable(
        tuple(columns), primary, unique, native, drop_clauses=drops, pinned=pinned, referred_by=referring
    )
