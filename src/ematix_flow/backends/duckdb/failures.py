"""Translation of DuckDB's errors to FlowErrors. Tasks import this module too."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import duckdb

from ematix_flow.backends.embedded.database_file import UNCHANGED, DatabaseFile
from ematix_flow.errors import FlowError, RowRejected, SourceFailed, TargetFailed

_ROW_EXCEPTIONS = (duckdb.ConstraintException, duckdb.DataError)
_MACHINE_EXCEPTIONS = (duckdb.IOException, duckdb.FatalException, duckdb.OutOfMemoryException)
_ROW_ERROR_TEXTS = ("Conversion Error", "Out of Range Error")  # prefixes in the errors of Arrow's stream
_KIND = re.compile(r"^[A-Za-z ]+ Error: ")
_POINTER = "\n\nLINE "  # DuckDB's pointer into the SQL; a load's SQL is generated, so it is cut off
_MAX_SHOWN = 600


@contextmanager
def translate_errors(translate: Callable[[duckdb.Error], FlowError]) -> Iterator[None]:
    """Raise DuckDB's errors as ``translate`` returns them. DuckDB reports a Ctrl-C as a RuntimeError."""
    try:
        yield
    except duckdb.Error as error:
        raise translate(error) from error
    except RuntimeError as error:
        if str(error) == "Query interrupted":
            raise KeyboardInterrupt from error
        raise


def target_error(error: duckdb.Error, file: DatabaseFile) -> FlowError:
    """The error of a write; the open transaction is rolled back."""
    rejection = _find_rejection(error)
    if rejection is not None:
        return RowRejected(
            rejection,
            state=UNCHANGED,
            next_step="correct or filter the row in the source SQL, or change the column's type",
        )
    if isinstance(error, _ROW_EXCEPTIONS):
        return RowRejected(
            f"DuckDB refused a row: {_sentence(error).split(_POINTER)[0]}",
            state=UNCHANGED,
            next_step="correct or filter the row in the source SQL, or change the column's type or key",
        )
    # a full disk at the commit is reported as an error of the transaction
    if isinstance(error, _MACHINE_EXCEPTIONS) or "No space left" in str(error):
        return TargetFailed(
            f"DuckDB cannot write {file.path}: {_sentence(error)}",
            state=UNCHANGED,
            next_step="check the disk's free space, the memory, and the permissions of file and folder",
        )
    return TargetFailed(
        f"DuckDB refused a statement on {file.path}: {_sentence(error)}",
        state=UNCHANGED,
        next_step="correct the SQL or column_map= of the pipeline;  flow plan  shows what a run does",
    )


def source_error(error: Exception, file: DatabaseFile) -> FlowError:
    """The error of a read, with DuckDB's own pointer into the SQL."""
    rejection = _find_rejection(error)
    if rejection is not None:
        return RowRejected(rejection)
    if isinstance(error, duckdb.DataError) or str(error).startswith(_ROW_ERROR_TEXTS):
        return RowRejected(
            f"DuckDB on connection {file.connection!r} cannot convert a value: {_sentence(error)}",
            next_step="correct the row in the source, or filter it in the source SQL",
        )
    return SourceFailed(
        f"DuckDB on connection {file.connection!r} reports: {_sentence(error)}",
        next_step="correct the source SQL",
    )


def _sentence(error: Exception) -> str:
    text = _KIND.sub("", str(error)).strip()
    return text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "…"


def _find_rejection(error: Exception) -> str | None:
    """The message of generated SQL that refused a value."""
    from ematix_flow.strategies.functions.base import find_rejection

    return find_rejection(str(error))
