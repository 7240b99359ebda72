"""The rules with which a Delta table refuses single rows, and the rows of a load that break them.

Delta checks its rules while it writes, and reports only one row. To find all of them without writing, the
same rules are checked on the rows to write: CHECK constraints, NOT NULL, the length of VARCHAR and CHAR, and
the values of generated columns.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

from ematix_flow.backends.lake.dialect import LakeDialect
from ematix_flow.backends.lake.row_changes import ACTION_COLUMN, INSERT, RowAction, RowChanges
from ematix_flow.errors import RowRejected
from ematix_flow.spec.generated_names import internal_name
from ematix_flow.spec.tables import TableSpec

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_CONSTRAINT = "delta.constraints."
_GENERATED, _DEFAULT, _LENGTH = (
    "delta.generationExpression",
    "CURRENT_DEFAULT",
    "__CHAR_VARCHAR_TYPE_STRING",
)
_CHARACTERS = re.compile(r"(?:var)?char\((\d+)\)")
_BROKEN, _STORED, _NEW = internal_name("broken"), internal_name("stored"), internal_name("new")


@dataclass(frozen=True)
class _RowRule:
    """``condition`` is Spark SQL over a whole row. False and null both break the rule, as in Delta."""

    description: str
    condition: str


@dataclass(frozen=True)
class TableRules:
    """The rules of a table, and its default and generated values: SQL by column, in the table's order."""

    rules: tuple[_RowRule, ...]
    types: Mapping[str, str]  # of every column
    defaults: Mapping[str, str]
    generated: Mapping[str, str]


def read_rules(spark: SparkSession, uri: str) -> TableRules:
    """Read the rules of the newest version of a table."""
    java: Any = spark
    log = java._jvm.org.apache.spark.sql.delta.DeltaLog
    metadata = log.forTableWithSnapshot(java._jsparkSession, uri)._2().metadata()
    fields = json.loads(metadata.schemaString())["fields"]
    quote = LakeDialect().quote
    types = {f["name"]: t for f, t in zip(fields, _column_types(metadata.schema()), strict=True)}
    defaults = {f["name"]: f["metadata"][_DEFAULT] for f in fields if _DEFAULT in f["metadata"]}
    generated = {f["name"]: f["metadata"][_GENERATED] for f in fields if _GENERATED in f["metadata"]}
    rules = [
        _RowRule(f"constraint {key.removeprefix(_CONSTRAINT)!r}", value)
        for key, value in _map_entries(metadata.configuration())
        if key.startswith(_CONSTRAINT)
    ]
    for field in fields:
        name, column = field["name"], quote(field["name"])
        if not field["nullable"]:
            rules.append(_RowRule(f"NOT NULL of column {name!r}", f"{column} IS NOT NULL"))
        limited = _CHARACTERS.fullmatch(field["metadata"].get(_LENGTH, ""))
        if limited:
            fits = f"{column} IS NULL OR length({column}) <= {limited[1]}"
            rules.append(_RowRule(f"type of column {name!r}", fits))
    rules += [
        _RowRule(f"generated column {name!r}", f"{quote(name)} <=> ({value})")
        for name, value in generated.items()
    ]
    return TableRules(tuple(rules), types, defaults, generated)


def _column_types(schema: Any) -> Iterator[str]:
    for field in schema.fields():
        yield field.dataType().catalogString()


def _map_entries(properties: Any) -> Iterator[tuple[str, str]]:
    """The entries of a Scala map."""
    entries = properties.iterator()
    while entries.hasNext():
        entry = entries.next()
        yield entry._1(), entry._2()


def refuse_broken_rows(rules: TableRules, table: TableSpec, stored: DataFrame, changes: RowChanges) -> None:
    """Raise RowRejected if a row that the changes write into ``stored`` breaks a rule."""
    from pyspark.sql import functions as f

    if not rules.rules:
        return
    for change in changes.actions:
        if not change.columns or not changes.counts.get(change.marker):
            continue
        rows = _rows_to_write(rules, stored, changes, change)
        fits = [f.expr(rule.condition) for rule in rules.rules]
        broken = reduce(
            lambda found, number: f.when(~f.coalesce(fits[number], f.lit(False)), number).otherwise(found),
            reversed(range(len(fits))),
            f.lit(None).cast("int"),
        )
        found = rows.select(broken.alias(_BROKEN)).where(f.col(_BROKEN).isNotNull()).limit(1).collect()
        if found:
            rule = rules.rules[found[0][0]]
            raise RowRejected(
                f"a row breaks the {rule.description} of {table.label}: {rule.condition}",
                state=f"{table.label} is unchanged",
                next_step="fix the value in the source, or filter it in the SQL",
            )


def _rows_to_write(rules: TableRules, stored: DataFrame, changes: RowChanges, change: RowAction) -> DataFrame:
    """The rows that one action writes, with all columns of the table."""
    from pyspark.sql import functions as f

    quote = LakeDialect().quote
    rows = changes.frame.where(f.col(quote(ACTION_COLUMN)) == change.marker)
    given = {name.lower() for name in change.columns}
    lacking = [name for name in rules.types if name.lower() not in given]
    plain = [name for name in lacking if name not in rules.generated]
    if change.marker == INSERT:
        values = [f.col(quote(name)) for name in change.columns]
        rows = rows.select(*values, *[_default_value(rules, name) for name in plain])
    else:
        rows = _updated_rows(stored, rows, changes, change, plain)
    return rows.select("*", *[_generated_value(rules, name) for name in lacking if name in rules.generated])


def _default_value(rules: TableRules, name: str) -> Column:
    from pyspark.sql import functions as f

    return f.expr(f"CAST(({rules.defaults.get(name, 'NULL')}) AS {rules.types[name]})").alias(name)


def _generated_value(rules: TableRules, name: str) -> Column:
    from pyspark.sql import functions as f

    return f.expr(f"CAST(({rules.generated[name]}) AS {rules.types[name]})").alias(name)


def _updated_rows(
    stored: DataFrame, rows: DataFrame, changes: RowChanges, change: RowAction, kept_columns: Sequence[str]
) -> DataFrame:
    """The stored rows with the values that the action sets."""
    from pyspark.sql import functions as f

    quote = LakeDialect().quote
    old, new = stored.alias(_STORED), rows.alias(_NEW)
    same = [
        f.col(f"{_STORED}.{quote(name)}") == f.col(f"{_NEW}.{quote(changes.match_column(name))}")
        for name in changes.match_on
    ]
    joined = old.join(new, reduce(lambda one, other: one & other, same))
    return joined.select(
        *[f.col(f"{_NEW}.{quote(name)}").alias(name) for name in change.columns],
        *[f.col(f"{_STORED}.{quote(name)}").alias(name) for name in kept_columns],
    )
