"""How text files are read: the options of CSV and of JSON lines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ematix_probe.column_types import plain_type
from ematix_probe.errors import DeclarationError
from ematix_probe.location import caller_location

CSV_SAMPLE_ROWS = 100_000
ColumnTypes = tuple[tuple[str, str], ...]  # names and types in plain words


@dataclass(frozen=True)
class CsvOptions:
    """``delimiter`` None: the one that the first line uses. ``null`` is how NULL is written, unquoted."""

    delimiter: str | None = None
    header: bool = True
    columns: ColumnTypes = ()
    quote: str = '"'
    escape: str | None = None  # None: a quote inside a value is doubled
    null: str = ""
    encoding: str = "utf-8"
    sample_rows: int | None = CSV_SAMPLE_ROWS  # None: all


@dataclass(frozen=True)
class JsonOptions:
    columns: ColumnTypes = ()
    sample_rows: int | None = None


def csv_options(
    delimiter: str | None, header: bool, columns: Any, quote: str, escape: str | None, rest: dict[str, Any]
) -> CsvOptions:
    for name, value in (("delimiter", delimiter), ("quote", quote), ("escape", escape)):
        if value is not None and (not isinstance(value, str) or len(value) != 1):
            raise _wrong(f"{name}= takes one character, not {value!r}")
    if not isinstance(header, bool):
        raise _wrong(f"header= is True or False, not {header!r}")
    for name in ("null", "encoding"):
        if name in rest and not isinstance(rest[name], str):
            raise _wrong(f"{name}= takes a text, not {rest[name]!r}")
    _check_sample(rest)
    return CsvOptions(delimiter, header, column_types(columns), quote, escape, **rest)


def json_options(columns: Any, rest: dict[str, Any]) -> JsonOptions:
    _check_sample(rest)
    return JsonOptions(column_types(columns), **rest)


def column_types(columns: Any) -> ColumnTypes:
    """The types that a user gives for columns, checked."""
    if columns is None:
        return ()
    if not isinstance(columns, Mapping):
        raise _wrong(f'columns= takes a mapping such as {{"id": "bigint"}}, not {columns!r}')
    try:
        return tuple((str(name), plain_type(kind)) for name, kind in columns.items())
    except ValueError as error:
        raise _wrong(f"columns=: {error}") from None


def _check_sample(rest: dict[str, Any]) -> None:
    rows = rest.get("sample_rows")
    if rows is not None and (not isinstance(rows, int) or isinstance(rows, bool) or rows < 1):
        raise _wrong(f"sample_rows= is a whole number from 1, or None for all rows; not {rows!r}")


def _wrong(what: str) -> DeclarationError:
    return DeclarationError(what, where=caller_location())
