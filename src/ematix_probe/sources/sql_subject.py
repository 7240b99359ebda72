"""What the databases share: the trees of a subject, names of tables, and messages without secrets."""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import quote

from sqlglot import exp

from ematix_probe.errors import DeclarationError, ProbeError
from ematix_probe.location import caller_location
from ematix_probe.sources.base import Subject

_IS_MISSING = (
    r"(?i)no such table|does not exist|doesn't exist|has no table|cannot be found|no Iceberg metadata"
)


def table_tree(schema: str | None, table: str) -> exp.Table:
    return exp.Table(
        this=exp.to_identifier(table, quoted=True),
        db=exp.to_identifier(schema, quoted=True) if schema else None,
    )


def reference_subject(name: str) -> Subject:
    """The subject of ``schema.table`` or ``table``."""
    schema, _, table = name.rpartition(".")
    return Subject(table, schema or None)


def add_schema_hint(error: ProbeError, subject: Subject) -> None:
    """Give the error of a missing table ``schema.table`` its next step: the schema has its own option."""
    if subject.query is not None or subject.schema is not None or "." not in subject.table:
        return
    if error.next_step is None and re.search(_IS_MISSING, error.what):
        found = reference_subject(subject.table)
        error.next_step = f'for a table of a schema write  schema="{found.schema}", table="{found.table}"'


def query_tree(sql: str) -> exp.Table:
    """A query in the words of the user, which the database alone reads.

    A statement that needs the rows several times evaluates it once, where the engine can.
    """
    inner = exp.Var(this=f"{sql.strip().rstrip(';').rstrip()}\n")  # a comment may end the last line
    tree = exp.Table(this=exp.Paren(this=inner))
    tree.meta["evaluate_once"] = True
    return tree


def subject_tree(subject: Subject) -> exp.Table:
    if subject.query is not None:
        return query_tree(subject.query)
    return table_tree(subject.schema, subject.table)


def describing(rows: exp.Query | exp.Table) -> exp.Select:
    """A statement that shows the columns and reads no row."""
    from ematix_probe.compiling.trees import always, from_rows

    return from_rows(rows, exp.Star()).where(always(False), copy=False)


def without_secrets(message: str, secrets: Iterable[str | None]) -> str:
    """A message of a driver in one line, with passwords masked however they are written."""
    for secret in secrets:
        for written in {secret, quote(secret, safe=""), quote(secret)} if secret else ():
            message = message.replace(written, "***")
    lines = [line.strip() for line in message.strip().splitlines() if line.strip()]
    shown = [line for line in lines if not re.match(r"LINE \d+:|\^+$", line)]
    return " ".join(shown[:3]) or "no reason is given"


def check_timeout(timeout: object) -> float | None:
    """Seconds that a statement may take; None: any time."""
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not 0 < timeout < 1e9:
        raise DeclarationError(
            f"timeout= is a number of seconds above 0, not {timeout!r}", where=caller_location()
        )
    return float(timeout)
