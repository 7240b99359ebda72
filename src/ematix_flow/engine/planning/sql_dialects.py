"""Translates SQL of another dialect to Spark's, and refuses what the translation would lose."""

from __future__ import annotations

from ematix_flow.errors import Unsupported
from ematix_flow.spec.streams import SPARK_DIALECTS


def is_translated(dialect: str | None) -> bool:
    return dialect is not None and dialect not in SPARK_DIALECTS


def to_spark_sql(sql: str, dialect: str | None) -> str:
    """The SQL in Spark's dialect. Raises Unsupported if it cannot be read or translated."""
    if not is_translated(dialect):
        return sql
    import sqlglot
    from sqlglot import exp
    from sqlglot.errors import ErrorLevel, SqlglotError, UnsupportedError

    try:
        trees = [tree for tree in sqlglot.parse(sql, read=dialect) if tree is not None]
    except (SqlglotError, ValueError) as error:
        raise Unsupported(
            f"transform_sql cannot be read as {dialect}: {str(error).splitlines()[0]}"
        ) from error
    if len(trees) != 1:
        raise Unsupported(f"transform_sql is one statement, and these are {len(trees)}")
    for collected in trees[0].find_all(exp.ArrayAgg):
        if collected.find(exp.Order):  # sqlglot leaves it out
            raise Unsupported(
                f"transform_sql: Spark cannot sort inside  {collected.sql(dialect)}",
                next_step="leave ORDER BY out there, and sort the array in Spark's SQL: "
                "array_sort(collect_list(…))",
            )
    try:
        return trees[0].sql("spark", unsupported_level=ErrorLevel.RAISE)
    except UnsupportedError as error:
        raise Unsupported(
            f"transform_sql cannot be translated from {dialect} to Spark's SQL: {str(error).splitlines()[0]}",
            next_step="write it in Spark's SQL, and leave dialect= out",
        ) from error
