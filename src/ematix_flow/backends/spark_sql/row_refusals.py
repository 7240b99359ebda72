"""Rows that generated SQL refuses to read: the SQL expression that fails, and its error found in Spark's.

The expression fails only when its value is used, so a column that cannot be read does not matter to a query
that does not select it.
"""

from __future__ import annotations

import re
from urllib.parse import unquote

from ematix_flow.errors import SourceFailed

_REFUSAL = re.compile(r"<<ematix_flow source: (.*?) ;; (.*?)>>", re.DOTALL)
_URI = re.compile("\x02(?:file:(?://)?)?(.*?)\x02")
FILE_PATH_SQL = "concat(char(2), _metadata.file_path, char(2))"  # the file that a row was read from


def raise_error_sql(*parts: str, next_step: str) -> str:
    """SQL that fails. ``parts`` are SQL text values: `text_literal`, columns, `FILE_PATH_SQL`."""
    marked = ", ".join([text_literal("<<ematix_flow source: "), *parts, text_literal(f" ;; {next_step}>>")])
    return f"raise_error(concat({marked}))"


def text_literal(value: str) -> str:
    """A literal in Spark's SQL."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def find_refusal(error_text: str) -> SourceFailed | None:
    """The refusal in the text of an error."""
    found = _REFUSAL.search(error_text)
    if found is None:
        return None
    what = _URI.sub(lambda uri: unquote(uri[1]), found[1])
    return SourceFailed(what, next_step=found[2])
