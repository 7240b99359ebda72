"""Staging tables on a database server: their names, and the rows of the reported parts."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from sqlglot import exp

from ematix_flow.backends.base import Load, StagedPart
from ematix_flow.backends.sql.control_tables import STAGING_SCHEMA
from ematix_flow.backends.sql.session import SqlDialect
from ematix_flow.backends.sql_servers.staged_batches import PART
from ematix_flow.spec.generated_names import distinct_name, part_number
from ematix_flow.strategies.sql import column


def staging_prefix(pipeline: str, target: str, length: int) -> str:
    """The prefix of all staging and work tables of this pipeline on this target.

    ``length`` is how many characters of their names it may show: servers limit names differently.
    """
    return distinct_name(pipeline, target, length=length) + "_"


def new_table_name(load: Load, length: int, suffix: str = "") -> str:
    """A name that no other attempt has."""
    mark = f"{load.run_id.hex[:8]}_{secrets.token_hex(4)}"
    return f"{staging_prefix(load.pipeline, load.target, length)}{mark}{suffix}"


def staging_name(table: str, dialect: SqlDialect) -> str:
    return dialect.render(dialect.table(STAGING_SCHEMA, table))


def select_parts(
    columns: Sequence[exp.Expr], table: str, parts: Sequence[StagedPart], dialect: SqlDialect
) -> exp.Select:
    """SELECT of these columns from the reported parts of a staging table."""
    select = exp.select(*columns).from_(dialect.table(STAGING_SCHEMA, table))
    numbers: list[exp.Expr] = [exp.Literal.number(part_number(p.part)) for p in parts if p.rows]
    if not numbers:
        return select.where(exp.false())
    return select.where(exp.In(this=column(PART), expressions=numbers))
