"""Errors that are the same for every database server. Tasks import this module, so it imports little."""

from __future__ import annotations

from ematix_flow.errors import CannotConnect, SourceFailed, TargetFailed

UNCHANGED = "the target is unchanged: its transaction was rolled back"
FIX_ROW = "correct the row in the source, filter it in the source SQL, or change the column's type"
FIX_DUPLICATE = "remove the duplicates from the source, or choose a mode that updates by key"
FIX_REFERENCE = "load the table that the foreign key refers to first, or correct the reference"
FIX_NULL = "fill the value in the source SQL, or declare the column nullable"
FIX_LENGTH = "shorten the value in the source SQL, or declare a longer String"
FIX_RANGE = "correct the value in the source, or declare a wider type"


def connect_error(
    product: str, name: str, label: str, user: str | None, reason: str, advice: str | None
) -> CannotConnect:
    """``name`` is the connection's, ``label`` its host, port and database."""
    as_user = f" as user {user!r}" if user else ""
    check = f"flow connections check {name}"
    return CannotConnect(
        f"connection {name!r} cannot reach {product} at {label}{as_user}: {reason}",
        next_step=f"{advice}, then  {check}" if advice else check,
    )


def source_connection_lost(name: str, message: str) -> SourceFailed:
    return SourceFailed(
        f"the connection {name!r} broke while rows were read: {message}",
        next_step=f"flow connections check {name}, then run it again",
    )


def target_connection_lost(message: str) -> TargetFailed:
    return TargetFailed(
        f"the connection to the target broke: {message}",
        state=UNCHANGED,
        next_step="run it again once the server answers",
    )


def commit_connection_lost(message: str) -> TargetFailed:
    """The error of a commit without an answer, which may have succeeded."""
    return TargetFailed(
        f"the connection to the target broke during the commit: {message}",
        state="the load is either complete or not applied; the ledger in the target shows which",
        next_step="run it again: a batch that is in the ledger is not loaded twice",
    )
