"""A Spark session as the SQL session of planning and strategies. It has no transactions: each statement on a
lake table commits by itself, and `load` decides which one does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ematix_flow.backends.sql.session import SqlSession
from ematix_flow.errors import Unsupported

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class SparkSqlSession(SqlSession):
    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark

    def execute(self, sql: str, params: Mapping[str, Any] | None = None) -> int:
        assert not params
        self.spark.sql(sql)
        return 0

    def fetch(self, sql: str, params: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
        """Fetch a small number of rows."""
        assert not params
        return [tuple(row) for row in self.spark.sql(sql).collect()]

    def begin(self) -> None:
        return

    def commit(self) -> None:
        return

    def rollback(self) -> None:
        return


@contextmanager
def temporary_settings(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Set these settings for the block, and restore the previous values afterwards."""
    before = {key: spark.conf.get(key, None) for key in settings}
    for key, value in settings.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key, known in before.items():
            if known is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, known)


def own_session(started: SparkSession, conf: Mapping[str, str]) -> SparkSession:
    """A new session with the settings of the started one and those of the lake."""
    if not hasattr(started, "newSession"):
        raise Unsupported(
            "a lake table cannot be loaded through Spark Connect, which cannot give a load its own session",
            state="nothing was touched",
            next_step="use the engine 'local', or name the cluster itself, as in spark://host:7077",
        )
    own = started.newSession()
    known = own.conf.getAll
    wanted = {k: v for k, v in started.conf.getAll.items() if known.get(k) != v and own.conf.isModifiable(k)}
    for key, value in {**wanted, **conf}.items():
        own.conf.set(key, value)
    return own
