"""What a database's error means for who writes to its tables through SQLAlchemy."""

from __future__ import annotations

from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError

_POSTGRES_CONFLICTS = ("42P06", "42P07", "42710", "40001", "40P01")
_MYSQL_CONFLICTS = (1007, 1050, 1061, 1205, 1213, 1684)


def is_conflict(error: SQLAlchemyError) -> bool:
    """Whether another session only got in the way: a row or table just made, a deadlock."""
    if isinstance(error, IntegrityError):
        return True
    cause = error.orig if isinstance(error, DBAPIError) else None
    code = cause.args[0] if cause is not None and cause.args else None
    return getattr(cause, "sqlstate", None) in _POSTGRES_CONFLICTS or code in _MYSQL_CONFLICTS


def own_words(error: SQLAlchemyError) -> str:
    """What the database itself says, without the statement."""
    return (str(error.orig) if isinstance(error, DBAPIError) else str(error)).strip()
