"""The tables that a query names, and the same query with a placeholder for each of them.

The SQL is Spark's and keeps every other character as written; only table names are replaced, at the positions
where the parser found them. Names of common table expressions stay. ``VERSION AS OF 3`` or
``TIMESTAMP AS OF '…'`` after a name is removed with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.optimizer.scope import traverse_scope

from ematix_flow.errors import SourceFailed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TableName = tuple[str, ...]


@dataclass(frozen=True)
class TimeTravel:
    """Which version of a table to read: ``sql`` is the expression after VERSION AS OF or TIMESTAMP AS OF."""

    kind: Literal["version", "timestamp"]
    sql: str

    def evaluate(self, spark: SparkSession) -> str:
        """The value of the expression; a time is in the session's zone, which is UTC."""
        wanted = self.sql if self.kind == "version" else f"TRY_CAST(({self.sql}) AS TIMESTAMP)"
        found = spark.sql(f"SELECT CAST(({wanted}) AS STRING)").collect()[0][0]
        if found is None:
            raise SourceFailed(
                f"{self}: this is not a {self.kind}",
                next_step="write  VERSION AS OF 3  or  TIMESTAMP AS OF '2026-01-31 08:00:00'  (UTC)",
            )
        return str(found)

    def __str__(self) -> str:
        return f"{self.kind.upper()} AS OF {self.sql}"


@dataclass(frozen=True)
class QueryTemplate:
    """A query with ``{t0}``, ``{t1}`` … for its tables, in the syntax of `str.format`."""

    sql: str
    tables: dict[str, TableName]  # placeholder -> the parts of the table's name
    time_travels: dict[str, TimeTravel] = field(default_factory=dict)  # by placeholder


@dataclass(frozen=True)
class _Edit:
    start: int  # the first character to replace
    end: int  # the first character to keep
    text: str


def parse_query_template(sql: str) -> QueryTemplate | None:
    """The query with placeholders; None when only Spark's own parser can report what is wrong with it."""
    try:
        trees = [tree for tree in sqlglot.parse(sql, read="spark") if tree is not None]
        tokens = sqlglot.tokenize(sql, read="spark")
    except SqlglotError:
        return None
    query = trees[0] if len(trees) == 1 else None
    if isinstance(query, exp.Alias | exp.Condition):  # a misspelt SELECT reads as an expression
        return None
    if not isinstance(query, exp.Query):
        raise SourceFailed(
            "the SQL of a source must be one query",
            next_step="return one SELECT from the pipeline's function",
        )
    try:
        return _make_template(sql, query, tokens)
    except SqlglotError:
        return None


def _make_template(sql: str, query: exp.Query, tokens: Sequence[Any]) -> QueryTemplate:
    named = _find_tables(query)
    placeholders: dict[tuple[TableName, TimeTravel | None], str] = {}
    edits: list[_Edit] = []
    for table in named:
        parts = name_parts(table)
        name = tuple(part.name for part in parts)
        start, end = parts[0].meta["start"], parts[-1].meta["end"] + 1
        moment, end = parse_time_travel(sql, tokens, table, end)
        placeholder = placeholders.setdefault((name, moment), f"t{len(placeholders)}")
        edits.append(_Edit(start, end, "{" + placeholder + "}"))
        if not table.alias:
            at = _end_of_sample(tokens, end)
            edits.append(_Edit(at, at, f" AS {quote_name(name[-1])}"))
    edits += _unqualified_columns(query, named)
    return QueryTemplate(
        _apply_edits(sql, edits),
        {placeholder: name for (name, _), placeholder in placeholders.items()},
        {placeholder: moment for (_, moment), placeholder in placeholders.items() if moment is not None},
    )


def query_frame(
    spark: SparkSession,
    sql: str,
    read: Callable[[TableName], DataFrame],
    read_at: Callable[[TableName, TimeTravel], DataFrame] | None = None,
) -> DataFrame:
    """The SQL as a DataFrame over the tables that ``read`` returns, or ``read_at`` for an older version.

    Spark's own errors pass through. Nothing stays in the session's catalog.
    """
    from pyspark.errors import ParseException

    placed = parse_query_template(sql)
    if placed is None:
        return _run_unparsed(spark, sql)
    if not placed.tables:
        return spark.sql(sql)
    frames: dict[str, Any] = {}
    for placeholder, table in placed.tables.items():
        moment = placed.time_travels.get(placeholder)
        if moment is None:
            frames[placeholder] = read(table)
        elif read_at is not None:
            frames[placeholder] = read_at(table, moment)
        else:
            raise SourceFailed(
                f"{'.'.join(table)!r} has no earlier versions that could be read: {moment}",
                next_step=f"leave  {moment}  out",
            )
    try:
        return spark.sql(placed.sql, None, **frames)
    except ParseException:
        spark.sql(sql)  # raises the same error for the user's text, with the right positions
        raise


def _run_unparsed(spark: SparkSession, sql: str) -> DataFrame:
    """SQL that sqlglot cannot parse: let Spark report the error, unless it only misses the tables."""
    from pyspark.errors import AnalysisException

    try:
        return spark.sql(sql)
    except AnalysisException as error:
        if error.getCondition() != "TABLE_OR_VIEW_NOT_FOUND":
            raise
        try:
            sqlglot.parse(sql, read="spark")
        except SqlglotError as wrong:
            reason = str(wrong).splitlines()[0]
            raise SourceFailed(f"the SQL cannot be read: {reason}", next_step="correct the SQL") from error
        raise


def select_columns_sql(table: str, columns: Sequence[tuple[str, str]]) -> str:
    """SELECT of ``(alias, source column)`` pairs from a table, everything quoted."""
    source = ".".join(quote_name(part) for part in table.split("."))
    chosen = ", ".join(f"{quote_name(column)} AS {quote_name(alias)}" for alias, column in columns)
    return f"SELECT {chosen or '*'} FROM {source}"


def quote_name(name: str) -> str:
    """A name in Spark's SQL."""
    return "`" + name.replace("`", "``") + "`"


def _find_tables(tree: exp.Query) -> list[exp.Table]:
    found: dict[int, exp.Table] = {}
    for scope in traverse_scope(tree):
        shared = {name.lower() for name in scope.cte_sources}
        for table in scope.tables:
            is_name = isinstance(table.this, exp.Identifier)
            if is_name and (table.db or table.name.lower() not in shared):
                found[id(table)] = table
    return list(found.values())


def name_parts(table: exp.Table | exp.Column) -> list[Any]:
    """The identifiers of a qualified name, outermost first."""
    keys = ("catalog", "db", "this") if isinstance(table, exp.Table) else ("catalog", "db", "table")
    return [table.args[key] for key in keys if table.args.get(key) is not None]


def parse_time_travel(
    sql: str, tokens: Sequence[Any], table: exp.Table, end: int
) -> tuple[TimeTravel | None, int]:
    """The version clause after a table name, and the position where it ends."""
    version = table.args.get("version")
    if version is None:
        return None, end
    following = [token for token in tokens if token.start >= end]
    places = [n for n, token in enumerate(following) if token.text.upper() == "OF"]
    start = following[places[0] + 1].start
    for token in following[places[0] + 1 :]:
        written = sql[start : token.end + 1]
        if _is_expression(written, version.expression):
            if version.expression.find(exp.Query):
                raise SourceFailed(f"the version of a table cannot come from a query: AS OF {written}")
            kind: Literal["version", "timestamp"] = "version" if version.name == "VERSION" else "timestamp"
            return TimeTravel(kind, written), int(token.end) + 1
    raise SqlglotError(f"where does the expression end that begins at {start}?")


def _is_expression(text: str, wanted: exp.Expr) -> bool:
    """Whether the whole text parses to this expression."""
    try:
        return sqlglot.parse_one(text, read="spark") == wanted
    except SqlglotError:
        return False


def _unqualified_columns(tree: exp.Query, tables: list[exp.Table]) -> list[_Edit]:
    """Edits that make ``schema.table.column`` into ``table.column``: its alias is its name."""
    names = {tuple(part.name.lower() for part in name_parts(table)) for table in tables if not table.alias}
    edits = []
    for column in tree.find_all(exp.Column):
        parts = name_parts(column)
        if len(parts) > 1 and tuple(part.name.lower() for part in parts) in names:
            edits.append(_Edit(parts[0].meta["start"], parts[-1].meta["start"], ""))
    return edits


def _end_of_sample(tokens: Sequence[Any], end: int) -> int:
    """The position of an alias: after the name, or after its TABLESAMPLE (…)."""
    following = [token for token in tokens if token.start >= end]
    if not following or following[0].token_type.name != "TABLE_SAMPLE":
        return end
    depth = 0
    for token in following:
        depth += {"L_PAREN": 1, "R_PAREN": -1}.get(token.token_type.name, 0)
        if token.token_type.name == "R_PAREN" and depth == 0:
            return int(token.end) + 1
    return end


def _apply_edits(sql: str, edits: list[_Edit]) -> str:
    out: list[str] = []
    at = 0
    for edit in sorted(edits, key=lambda edit: (edit.start, edit.end)):
        out += [
            _escape_braces(sql[at : edit.start]),
            edit.text if edit.text.startswith("{") else _escape_braces(edit.text),
        ]
        at = edit.end
    out.append(_escape_braces(sql[at:]))
    return "".join(out)


def _escape_braces(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")
