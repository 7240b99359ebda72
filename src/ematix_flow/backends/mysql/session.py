"""One pymysql connection as a `SqlSession`: explicit transactions, and errors as FlowErrors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from ematix_flow.backends.mysql.address import APPLICATION, MySQLAddress
from ematix_flow.backends.mysql.connection import DriverError, open_connection
from ematix_flow.backends.mysql.failures import commit_failure, target_failure
from ematix_flow.backends.sql.session import SqlSession


class MySQLSession(SqlSession):
    """Each statement outside ``begin`` and ``commit`` is a transaction."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    def execute(self, sql: str, params: Mapping[str, Any] | None = None) -> int:
        try:
            with self.connection.cursor() as cursor:
                return max(int(cursor.execute(sql, params)), 0)
        except DriverError as error:
            raise target_failure(error) from error

    def fetch(self, sql: str, params: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
        try:
            with self.connection.cursor() as cursor:
                cursor.execute(sql, params)
                return list(cursor.fetchall())
        except DriverError as error:
            raise target_failure(error) from error

    def begin(self) -> None:
        """One snapshot for the whole transaction, so that the counted rows are the inserted rows."""
        self.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        self.execute("START TRANSACTION")

    def commit(self) -> None:
        try:
            self.connection.commit()
        except DriverError as error:
            raise commit_failure(error) from error

    def rollback(self) -> None:
        # the server has rolled back a broken connection; the first error is the one to report
        with suppress(DriverError, OSError):
            if self.connection.open:
                self.connection.rollback()


@contextmanager
def open_session(address: MySQLAddress, program: str = APPLICATION) -> Iterator[MySQLSession]:
    with open_connection(address, program=program) as connection:
        yield MySQLSession(connection)
