"""Column types of our tables that mean the same in every database."""

from __future__ import annotations

import datetime as dt
from typing import Any

import sqlalchemy as sa

from ematix_flow.state.times import aware_utc


class UtcDateTime(sa.types.TypeDecorator[dt.datetime]):
    """An aware UTC datetime to the microsecond, even if the database has no time zones."""

    impl = sa.DateTime(timezone=True)
    cache_ok = True

    def load_dialect_impl(self, dialect: sa.Dialect) -> sa.types.TypeEngine[Any]:
        if dialect.name in ("mysql", "mariadb"):
            from sqlalchemy.dialects import mysql  # imported only here: the import is slow

            return dialect.type_descriptor(mysql.DATETIME(fsp=6))
        return dialect.type_descriptor(sa.DateTime(timezone=True))

    def process_bind_param(self, value: dt.datetime | None, dialect: sa.Dialect) -> dt.datetime | None:
        if value is None:
            return None
        moment = aware_utc("a time", value)
        return moment if dialect.name == "postgresql" else moment.replace(tzinfo=None)

    def process_result_value(self, value: dt.datetime | None, dialect: sa.Dialect) -> dt.datetime | None:
        if value is None:
            return None
        # if the database has no time zones, the driver returns a naive time; we stored UTC
        return value.astimezone(dt.timezone.utc) if value.tzinfo else value.replace(tzinfo=dt.timezone.utc)


class ExactText(sa.types.TypeDecorator[str]):
    """A short text that is compared exactly: MySQL's own types ignore case, accents or spaces."""

    impl = sa.String
    cache_ok = True

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.length = length

    def load_dialect_impl(self, dialect: sa.Dialect) -> sa.types.TypeEngine[Any]:
        if dialect.name in ("mysql", "mariadb"):
            return dialect.type_descriptor(sa.VARBINARY(4 * self.length))
        return dialect.type_descriptor(sa.String(self.length))

    def process_bind_param(self, value: str | None, dialect: sa.Dialect) -> object:
        return value.encode("utf-8") if value is not None and dialect.name in ("mysql", "mariadb") else value

    def process_result_value(self, value: object, dialect: sa.Dialect) -> str | None:
        return bytes(value).decode("utf-8") if isinstance(value, bytes | bytearray) else value  # type: ignore[return-value]  # a str
