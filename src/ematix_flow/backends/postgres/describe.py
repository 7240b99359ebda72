"""The result columns of a SQL text, from the server, without running it."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg.pq import ExecStatus

from ematix_flow.backends.postgres.dialect import PostgresDialect
from ematix_flow.backends.postgres.failures import source_failure
from ematix_flow.backends.postgres.result_types import RESULT_TYPES_SQL, ResultColumn, result_columns
from ematix_flow.backends.sql_servers.source_queries import as_subquery, require_distinct_columns
from ematix_flow.errors import SourceFailed
from ematix_flow.strategies.raw_sql import one_statement


def describe_query(connection: psycopg.Connection[Any], name: str, sql: str) -> tuple[ResultColumn, ...]:
    """The columns of the result, from preparing the SQL as written and as a subquery.

    ``name`` is the connection's, for errors. Raises SourceFailed for anything but one readable SELECT.
    """
    inner = one_statement(sql, "postgres")
    if "\x00" in inner:
        raise SourceFailed("the source SQL holds a NUL character")
    columns = prepare_statement(connection, name, inner, inner)
    require_distinct_columns([column for column, _, _ in columns])
    prepare_statement(connection, name, inner, f"SELECT * FROM {as_subquery(inner, PostgresDialect())}")
    parameters = {"oids": [oid for _, oid, _ in columns], "typmods": [mod for _, _, mod in columns]}
    rows = connection.execute(RESULT_TYPES_SQL, parameters).fetchall()
    return result_columns(columns, {place: found for place, *found in rows})


def prepare_statement(
    connection: psycopg.Connection[Any], name: str, sql: str, statement: str
) -> list[tuple[str, int, int]]:
    """Name, type and type modifier of each column of ``statement``, which holds the user's ``sql``."""
    wire = connection.pgconn
    try:
        for answer in (wire.prepare(b"", statement.encode()), wire.describe_prepared(b"")):
            if answer.status != ExecStatus.COMMAND_OK:
                raise psycopg.errors.error_from_result(answer)
    except psycopg.Error as error:
        raise source_failure(error, name, sql, statement) from error
    if answer.nparams:
        raise SourceFailed(
            f"the source SQL holds {answer.nparams} parameter(s) like $1, and no value is given for it",
            next_step="write the values into the SQL",
        )
    fields = range(answer.nfields)
    return [((answer.fname(i) or b"").decode(), answer.ftype(i), answer.fmod(i)) for i in fields]
