"""The SQL function behind `canonical_value`: converts a loosely typed value or refuses it."""

from __future__ import annotations

import json
import sqlite3
from functools import lru_cache
from typing import Any

from ematix_flow.backends.sqlite.values import UnfitSQLiteValue, parse_value, to_stored
from ematix_flow.errors import RowRejected
from ematix_flow.spec.types import DataType

FUNCTION = "EMATIX_FLOW_VALUE"
_MAX_SHOWN = 80


def register(connection: sqlite3.Connection, failures: list[RowRejected]) -> None:
    """Register the function on a connection. SQLite hides its exceptions, so ``failures`` gets them."""

    def value(raw: Any, type_json: str, column: str) -> Any:
        data_type = _type(type_json)
        try:
            return to_stored(parse_value(raw, data_type), data_type)
        except UnfitSQLiteValue as misfit:
            shown = repr(raw)
            shown = shown if len(shown) <= _MAX_SHOWN else shown[: _MAX_SHOWN - 1] + "…"
            failures.append(
                RowRejected(
                    f"column {column!r}: {shown} {misfit}",
                    next_step="correct the row in the source, filter it in the source SQL, "
                    "or change the column's type or markers",
                )
            )
            raise

    connection.create_function(FUNCTION, 3, value, deterministic=True)


@lru_cache(maxsize=256)
def _type(text: str) -> DataType:
    return DataType.from_json(json.loads(text))
