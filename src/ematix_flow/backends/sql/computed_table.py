"""A table that a database computes once from the source SQL, for several targets in it to load from.

It is in the staging schema. Its name is fixed for a pipeline and its first target, whose lock the caller
holds. The next run replaces what a crash left.
"""

from __future__ import annotations

import logging

from sqlglot import exp

from ematix_flow.backends.sql.control_tables import STAGING_SCHEMA
from ematix_flow.backends.sql.session import SqlDialect, transaction
from ematix_flow.backends.sql.target import RelationalTarget
from ematix_flow.errors import FlowError, RowRejected, SourceFailed, TargetFailed
from ematix_flow.spec.generated_names import distinct_name
from ematix_flow.spec.tables import ColumnSpec, TableSpec
from ematix_flow.spec.types import DataType
from ematix_flow.strategies.sql import verbatim, with_alias

_log = logging.getLogger(__name__)


def computed_table_name(pipeline: str, target: str) -> str:
    return distinct_name(pipeline, target) + "_computed"


def select_computed_sql(dialect: SqlDialect, name: str) -> str:
    """SQL that selects all rows of the table, used in place of the user's SQL."""
    return dialect.render(exp.select("*").from_(dialect.table(STAGING_SCHEMA, name)))


def compute_table(target: RelationalTarget, name: str, sql: str) -> None:
    """Compute the rows of ``sql`` into the table, in one transaction."""
    dialect = target.dialect
    rows = with_alias(verbatim(sql), "rows")
    table = dialect.render(dialect.table(STAGING_SCHEMA, name))
    place = TableSpec(STAGING_SCHEMA, name, (ColumnSpec("any", DataType("text")),))
    try:
        with target.session() as session, transaction(session):
            for change in target.schema_changes(session, place):
                session.execute(change.sql)
            session.execute(f"DROP TABLE IF EXISTS {table}")
            session.execute(f"CREATE TABLE {table} AS {dialect.render(exp.select('*').from_(rows))}")
    except (TargetFailed, RowRejected) as error:
        raise SourceFailed(
            f"the source SQL could not be computed: {error.what}",
            state="every target is as before",
            next_step=error.next_step,
        ) from error


def drop_computed_table(target: RelationalTarget, name: str) -> None:
    """Drop it. A failure is a warning, because the load has committed; the next run replaces the table."""
    table = target.dialect.render(target.dialect.table(STAGING_SCHEMA, name))
    try:
        with target.session() as session, transaction(session):
            session.execute(f"DROP TABLE IF EXISTS {table}")
    except FlowError as error:
        _log.warning("table %s stays until the next run: %s", table, error.what)
