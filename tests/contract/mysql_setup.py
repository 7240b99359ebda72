"""Shared by the MySQL contract tests: a backend on a fresh database, statements, and reads without Spark."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from contextlib import closing
from typing import Any

import pytest

from ematix_flow.backends.base import SourceQuery
from ematix_flow.backends.mysql.backend import MySQLBackend
from ematix_flow.backends.mysql.connection import connect
from ematix_flow.spec.connections import MySQLConnection
from ematix_flow.spec.types import DataType
from ematix_flow.spec.watermarks import SourceRange
from tests.services.mysql_server import MySQLServer

FAMILY = [
    pytest.param("mariadb", marks=pytest.mark.mariadb),
    pytest.param("mysql", marks=pytest.mark.mysql),
]


def backend_of(url: str, **fields: Any) -> MySQLBackend:
    return MySQLBackend(MySQLConnection(name="wh", url=url, **fields))


def sql(url: str, statement: str) -> list[tuple[Any, ...]]:
    """One statement in a session that takes what a careless application writes, zero dates for one."""
    with closing(connect(backend_of(url).address)) as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION sql_mode = ''")
        cursor.execute(statement)
        return list(cursor.fetchall())


def read_all(
    backend: MySQLBackend,
    select: str,
    *,
    wanted: Mapping[str, DataType] | None = None,
    source_range: SourceRange | None = None,
) -> list[dict[str, Any]]:
    with backend.source().split(SourceQuery(select, source_range), wanted or {}, 4) as splits:
        copies = pickle.loads(pickle.dumps(list(splits)))
        return [row for split in copies for batch in split.read() for row in batch.to_pylist()]


def server_of(request: pytest.FixtureRequest, product: str) -> MySQLServer:
    server: MySQLServer = request.getfixturevalue(product)
    return server
