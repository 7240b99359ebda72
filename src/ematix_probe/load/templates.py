"""``{column}`` in URLs, headers and bodies, replaced by the values of a feeder's row.

A value is always data: in a URL it is percent-encoded, in a header it may not end the line, in a JSON body it
is a JSON value. The host of a URL takes no column: hosts must be known before the first request.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote

COLUMN = re.compile(r"(?<!\$)\{([A-Za-z_][A-Za-z0-9_]*)\}")
_HEADER_BREAKS = re.compile(r"[\r\n\0]")

Row = Mapping[str, Any]


class TemplateError(ValueError):
    """A row has no value for a template, or one that cannot stand there."""


def columns_of(text: str) -> set[str]:
    return set(COLUMN.findall(text))


def columns_of_json(value: Any) -> set[str]:
    """The columns in all texts of a JSON value."""
    if isinstance(value, str):
        return columns_of(value)
    if isinstance(value, Mapping):
        return set().union(*(columns_of_json(part) for pair in value.items() for part in pair), set())
    if isinstance(value, (list, tuple)):
        return set().union(*(columns_of_json(part) for part in value), set())
    return set()


def as_text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _value(row: Row, column: str) -> Any:
    try:
        return row[column]
    except KeyError:
        raise TemplateError(f"the feeder's row has no column {column!r}") from None


def render(text: str, row: Row, encode: Callable[[Any], str] = as_text) -> str:
    """The text with each ``{column}`` replaced by the row's value."""
    return COLUMN.sub(lambda found: encode(_value(row, found[1])), text)


def render_url(text: str, row: Row) -> str:
    return render(text, row, encode_for_url)


def encode_for_url(value: Any) -> str:
    return quote(as_text(value), safe="")


def render_header(text: str, row: Row) -> str:
    rendered = render(text, row)
    check_header(rendered)
    return rendered


def check_header(value: str) -> None:
    """TemplateError for a value that would end the header's line, or that HTTP cannot hold."""
    if _HEADER_BREAKS.search(value):
        raise TemplateError("the value of a header has a line break")
    try:
        value.encode("latin-1")
    except UnicodeEncodeError:
        raise TemplateError("the value of a header has characters that HTTP does not allow") from None


def render_known(text: str, row: Row) -> str:
    """The text with the columns that the row has; other braces belong to the text, as in JSON or GraphQL."""
    return COLUMN.sub(lambda found: as_text(row[found[1]]) if found[1] in row else found[0], text)


def render_json(value: Any, row: Row) -> Any:
    """A JSON value with its texts rendered. A text that is one ``{column}`` becomes that value."""
    if isinstance(value, str):
        whole = COLUMN.fullmatch(value)
        return _value(row, whole[1]) if whole else render(value, row)
    if isinstance(value, Mapping):
        return {render(str(name), row): render_json(part, row) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [render_json(part, row) for part in value]
    return value
