"""What a database error means for our tables, and how it is reported."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError

from ematix_flow.errors import CannotConnect, ConfigError, FlowError

RUN_LOG = "run_log"  # the connection name of a run log, which nothing declares

_POSTGRES_CONFLICTS = ("42P06", "42P07", "42710", "40001", "40P01")
_MYSQL_CONFLICTS = (1007, 1050, 1061, 1205, 1213, 1684)
_POSTGRES_TIMEOUTS = ("57014", "55P03")
_TIMEOUT_MESSAGES = ("timeout", "timed out", "database is locked")
_DAMAGE_MESSAGES = ("file is not a database", "disk image is malformed")


class DatabaseNotReached(SQLAlchemyError):
    """A connection could not be opened; a SQLAlchemyError, as callers expect."""

    def __init__(self, reason: CannotConnect) -> None:
        super().__init__(reason.what)
        self.reason = reason


@contextmanager
def open_connection(engine: sa.Engine) -> Iterator[sa.Connection]:
    """Open a connection. Every failure, also of the network, is a SQLAlchemyError."""
    try:
        connection = engine.connect()
    except CannotConnect as error:  # also of an engine that refuses
        raise DatabaseNotReached(error) from error
    with connection:
        yield connection


def is_conflict(error: SQLAlchemyError) -> bool:
    """Whether another session caused the error: a row or table just created, or a deadlock."""
    if isinstance(error, IntegrityError):
        return True
    cause = error.orig if isinstance(error, DBAPIError) else None
    code = cause.args[0] if cause is not None and cause.args else None
    return getattr(cause, "sqlstate", None) in _POSTGRES_CONFLICTS or code in _MYSQL_CONFLICTS


def is_timeout(error: SQLAlchemyError) -> bool:
    """Whether the error is a timeout: something is locked, or the server does not answer."""
    cause = error.orig if isinstance(error, DBAPIError) else None
    if getattr(cause, "sqlstate", None) in _POSTGRES_TIMEOUTS:
        return True
    return any(words in database_message(error).lower() for words in _TIMEOUT_MESSAGES)


def database_message(error: SQLAlchemyError) -> str:
    """Return the message of the database, without the statement."""
    return (str(error.orig) if isinstance(error, DBAPIError) else str(error)).strip()


def run_log_unavailable(location: str, error: SQLAlchemyError) -> FlowError:
    """Return the error for a run log or its slots: CannotConnect if its server cannot be reached."""
    another = "name another with --run-log or EMATIX_FLOW_RUN_LOG_URL"
    if isinstance(error, DatabaseNotReached):
        reason = error.reason.what.replace(f"connection {RUN_LOG!r}", f"the run log {location}")
        # a connection that is not declared cannot be checked
        advice = (error.reason.next_step or "").partition("flow connections check")[0]
        advice = advice.strip().removesuffix("then").strip(" ,")
        return CannotConnect(
            reason, state=error.reason.state, next_step=f"{advice}, or {another}" if advice else another
        )
    what = f"the run log {location} cannot be used: {database_message(error)}"
    if any(words in what for words in _DAMAGE_MESSAGES):
        return ConfigError(
            what,
            state="the file is damaged, or never was a run log",
            next_step="restore a backup, or move it away: a new one starts without history, and schedules "
            f"start over; or {another}",
        )
    if is_timeout(error):
        return ConfigError(what, next_step=f"check what locks its tables or blocks its server; or {another}")
    if not location.startswith("sqlite:"):
        return ConfigError(
            what, next_step=f"check that its user may create, read and write tables there, or {another}"
        )
    return ConfigError(what, next_step=f"make it readable and writable, or {another}")


@contextmanager
def run_log_connection(engine: sa.Engine, location: str) -> Iterator[sa.Connection]:
    """Open a connection to the database of a run log; its errors within the block are ours."""
    try:
        with open_connection(engine) as connection:
            yield connection
    except SQLAlchemyError as error:
        raise run_log_unavailable(location, error) from error
