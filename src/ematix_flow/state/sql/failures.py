"""What a database's error means for who keeps tables of ours in it through SQLAlchemy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError

from ematix_flow.errors import CannotConnect, ConfigError, FlowError

RUN_LOG = "run_log"  # what the connection of a run log is called, though nothing declares it

_POSTGRES_CONFLICTS = ("42P06", "42P07", "42710", "40001", "40P01")
_MYSQL_CONFLICTS = (1007, 1050, 1061, 1205, 1213, 1684)
_POSTGRES_TIMEOUTS = ("57014", "55P03")
_TIMEOUT_MESSAGES = ("timeout", "timed out", "database is locked")
_DAMAGE_MESSAGES = ("file is not a database", "disk image is malformed")


class DatabaseNotReached(SQLAlchemyError):
    """A connection that could not be made, for those who expect errors of SQLAlchemy."""

    def __init__(self, reason: CannotConnect) -> None:
        super().__init__(reason.what)
        self.reason = reason


@contextmanager
def open_connection(engine: sa.Engine) -> Iterator[sa.Connection]:
    """A connection. Whatever goes wrong, also on the way to the server, is a SQLAlchemyError."""
    try:
        connection = engine.connect()
    except CannotConnect as error:
        raise DatabaseNotReached(error) from error
    with connection:
        yield connection


def is_conflict(error: SQLAlchemyError) -> bool:
    """Whether another session only got in the way: a row or table just made, a deadlock."""
    if isinstance(error, IntegrityError):
        return True
    cause = error.orig if isinstance(error, DBAPIError) else None
    code = cause.args[0] if cause is not None and cause.args else None
    return getattr(cause, "sqlstate", None) in _POSTGRES_CONFLICTS or code in _MYSQL_CONFLICTS


def is_timeout(error: SQLAlchemyError) -> bool:
    """Whether an answer was waited for in vain: something is locked, or the server does not answer."""
    cause = error.orig if isinstance(error, DBAPIError) else None
    if getattr(cause, "sqlstate", None) in _POSTGRES_TIMEOUTS:
        return True
    return any(words in database_message(error).lower() for words in _TIMEOUT_MESSAGES)


def database_message(error: SQLAlchemyError) -> str:
    """What the database itself says, without the statement."""
    return (str(error.orig) if isinstance(error, DBAPIError) else str(error)).strip()


def run_log_unavailable(location: str, error: SQLAlchemyError) -> FlowError:
    """Of the run log, or of the slots beside it: CannotConnect when its server is away."""
    another = "name another with --run-log or EMATIX_FLOW_RUN_LOG_URL"
    if isinstance(error, DatabaseNotReached):
        reason = error.reason.what.replace(f"connection {RUN_LOG!r}", f"the run log {location}")
        # nobody can check a connection that nothing declares
        advice = (error.reason.next_step or "").partition("flow connections check")[0]
        advice = advice.strip().removesuffix("then").strip(" ,")
        return CannotConnect(reason, next_step=f"{advice}, or {another}" if advice else another)
    what = f"the run log {location} cannot be used: {database_message(error)}"
    if any(words in what for words in _DAMAGE_MESSAGES):
        return ConfigError(
            what,
            state="the file is damaged, or never was a run log",
            next_step="put a backup in its place, or move it away: a new one begins without history, and "
            f"schedules anew; or {another}",
        )
    if is_timeout(error):
        return ConfigError(what, next_step=f"see who holds its tables locked, or its server up; or {another}")
    if not location.startswith("sqlite:"):
        return ConfigError(
            what, next_step=f"see that its user may create, read and write tables there, or {another}"
        )
    return ConfigError(what, next_step=f"make it readable and writable, or {another}")
