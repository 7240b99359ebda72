"""A new table that replaces the old one, for a database whose ALTER TABLE cannot make the change.

The live CREATE TABLE statement is split into its columns and constraints. Those that change must be written
as ematix-flow writes them; all others are copied unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from sqlglot import exp

from ematix_flow.backends.base import TableChange
from ematix_flow.backends.sql.alterations import CannotAlter
from ematix_flow.backends.sql.create_table import column_definition, column_list
from ematix_flow.backends.sql.session import SqlDialect
from ematix_flow.backends.sql.table_diff import TableDiff
from ematix_flow.spec.generated_names import internal_name
from ematix_flow.spec.tables import ROW_HASH, ColumnSpec
from ematix_flow.strategies.sql import column, insert_into

_TOKEN = re.compile(
    r"""
    --[^\n]* | /\*.*?\*/ | \s+              # comments and space
  | "(?:[^"]|"")*" | `(?:[^`]|``)*` | \[[^\]]*\] | '(?:[^']|'')*'
  | \w+ | .
    """,
    re.VERBOSE | re.DOTALL,
)
_CONSTRAINTS = ("constraint", "primary", "unique", "check", "foreign")


@dataclass(frozen=True)
class TableElement:
    """A column or constraint of a CREATE TABLE: its text, and its words in lower case without quotes."""

    text: str
    words: tuple[str, ...]

    @property
    def is_column(self) -> bool:
        first = _TOKEN.match(self.text)  # a quoted word is a name
        return first is None or first[0].lower() not in _CONSTRAINTS


@dataclass(frozen=True)
class CreateTableStatement:
    """A parsed CREATE TABLE statement."""

    elements: tuple[TableElement, ...]
    tail: str

    @classmethod
    def parse(cls, sql: str) -> CreateTableStatement:
        depth, start, found, end = 0, 0, [], 0
        for token in _TOKEN.finditer(sql):
            text = token[0]
            if text == "(":
                depth += 1
                if depth == 1:
                    start = token.end()
            elif depth == 1 and text in ",)":
                found.append(_parse_element(sql[start : token.start()]))
                start = end = token.end()
            if text == ")":
                depth -= 1
                if depth == 0:
                    break
        if not found:
            raise CannotAlter("its definition has no list of columns. By hand: create the table again")
        return cls(tuple(found), sql[end:].strip().rstrip(";").strip())

    def mentions(self, word: str) -> bool:
        return any(word in definition.words for definition in self.elements)


def rebuild_changes(
    dialect: SqlDialect,
    diff: TableDiff,
    created: CreateTableStatement,
    again: Sequence[str],
    before_rename: str = "",
) -> list[TableChange]:
    """The statements in order: create a new table, copy, drop the old, rename, run ``again`` (indexes …)."""
    wanted = diff.wanted
    aside = internal_name(f"new_{wanted.name}")
    old, new = dialect.table(wanted.schema, wanted.name), dialect.table(wanted.schema, aside)
    lines = ",\n  ".join(_new_elements(dialect, diff, created))
    create = f"CREATE TABLE {dialect.render(new)} (\n  {lines}\n)" + (
        f" {created.tail}" if created.tail else ""
    )
    rename = f"ALTER TABLE {dialect.render(new)} RENAME TO {dialect.quote(old.name)}"
    statements = [
        create,
        dialect.render(_copy_rows(dialect, diff, old, new)),
        f"DROP TABLE {dialect.render(old)}",
        before_rename,
        rename,
        *again,
    ]
    return [TableChange("rebuild_table", wanted.label, sql) for sql in statements if sql]


def _new_elements(dialect: SqlDialect, diff: TableDiff, created: CreateTableStatement) -> list[str]:
    changed = {c.name.lower(): c for c in (*diff.widened, *diff.relaxed, *diff.tightened)}
    live = {c.name.lower(): c for c in diff.live.columns}
    columns, constraints = [], []
    limits = [dialect.column_constraint(_with_limit(diff, live[c.name.lower()])) for c in diff.widened]
    unneeded = [_without_punctuation(sql_words(limit)) for limit in limits if limit]
    dropped = [("unique", *(n.lower() for n in group)) for group in diff.drop_keys]
    for definition in created.elements:
        name = definition.words[0] if definition.words else ""
        if not definition.is_column:
            bare = _without_punctuation(definition.words)
            if bare in dropped or bare in unneeded:
                continue
            if diff.primary_key is not None and bare[:2] == ("primary", "key"):
                continue
            constraints.append(definition.text)
        elif name in changed:
            _require_known_definition(dialect, diff, definition, live[name])
            item = changed[name]
            if item in diff.relaxed and item not in diff.widened:  # its type stays as written
                columns.append(_without_not_null(definition))
            else:
                columns.append(column_definition(dialect, _final_column(diff, item, live[name])))
        else:
            columns.append(definition.text)
    columns += [column_definition(dialect, item) for item in diff.added]
    if diff.primary_key is not None:
        if any("primary" in d.words for d in created.elements if d.is_column):
            raise CannotAlter(
                "its primary key is part of a column definition. By hand: create the table again"
            )
        constraints.append(f"PRIMARY KEY {column_list(dialect, diff.primary_key)}")
    _require_dropped(diff, created)
    return columns + constraints + [f"UNIQUE {column_list(dialect, group)}" for group in diff.add_unique]


def _final_column(diff: TableDiff, item: ColumnSpec, live_column: ColumnSpec) -> ColumnSpec:
    """A column that is only widened keeps its NOT NULL."""
    if item in diff.relaxed or item in diff.tightened:
        return item
    return replace(item, nullable=live_column.nullable)


def _with_limit(diff: TableDiff, live_column: ColumnSpec) -> ColumnSpec:
    return replace(live_column, type=diff.live.limits.get(live_column.name, live_column.type))


def _require_known_definition(
    dialect: SqlDialect, diff: TableDiff, definition: TableElement, live_column: ColumnSpec
) -> None:
    """A definition that changes must contain nothing that the new table would lose."""
    native = diff.live.native.get(live_column.name, "")
    kept = _with_limit(diff, live_column)
    types = {sql_words(native), sql_words(dialect.native_type(kept.type))}
    constraint = sql_words(dialect.column_constraint(kept))
    rests = {
        (*type_words, *nulls, *limit)
        for type_words in types
        for nulls in ((), ("not", "null"))
        for limit in ((), constraint)
    }
    if _without_punctuation(definition.words[1:]) not in {_without_punctuation(rest) for rest in rests}:
        raise CannotAlter(
            f"column {live_column.name!r} is defined as  {definition.text}  which a rebuilt table could not "
            "keep completely. By hand: create the table again with the declared column"
        )


def _require_dropped(diff: TableDiff, created: CreateTableStatement) -> None:
    """Each key to drop must be a constraint as ematix-flow writes it."""
    there = {_without_punctuation(d.words) for d in created.elements if not d.is_column}
    for group in diff.drop_keys:
        names = tuple(name.lower() for name in group)
        if ("unique", *names) not in there and ("primary", "key", *names) not in there:
            raise CannotAlter(
                f"the table is unique in ({', '.join(group)}) by an index, or by a constraint that "
                "ematix-flow did not write. By hand: drop it"
            )


def _without_not_null(definition: TableElement) -> str:
    """The text without its NOT NULL outside quotes and brackets."""
    depth, last = 0, None
    for token in _TOKEN.finditer(definition.text):
        word = token[0].lower()
        depth += {"(": 1, ")": -1}.get(word, 0)
        if depth == 0 and not word.isspace():
            if last is not None and last[0].lower() == "not" and word == "null":
                return (definition.text[: last.start()].rstrip() + definition.text[token.end() :]).rstrip()
            last = token
    return definition.text


def _copy_rows(dialect: SqlDialect, diff: TableDiff, old: exp.Table, new: exp.Table) -> exp.Insert:
    widened = {c.name: c for c in diff.widened}
    values: dict[str, exp.Expr] = {}
    for item in diff.live.columns:
        name = item.name
        values[name] = dialect.convert_value(column(name), widened[name]) if name in widened else column(name)
    values |= diff.first_version_values
    if diff.rehash is not None:
        is_null = exp.Is(this=column(ROW_HASH), expression=exp.Null())
        values[ROW_HASH] = exp.Case(ifs=[exp.If(this=is_null, true=exp.Null())], default=diff.rehash)
    select = exp.select(*[v.copy() for v in values.values()]).from_(old.copy())
    return insert_into(new, list(values), select)


def _parse_element(text: str) -> TableElement:
    return TableElement(text.strip(), sql_words(text))


def sql_words(sql: str) -> tuple[str, ...]:
    out = []
    for token in _TOKEN.finditer(sql):
        text = token[0]
        if text.isspace() or text.startswith(("--", "/*")):
            continue
        if text[0] in '"`' and len(text) > 1:
            text = text[1:-1].replace(text[0] * 2, text[0])
        elif text[0] == "[" and len(text) > 2:
            text = text[1:-1]
        out.append(text.lower())
    return tuple(out)


def _without_punctuation(words: Iterable[str]) -> tuple[str, ...]:
    """The words without brackets and commas, which each database writes differently."""
    return tuple(word for word in words if word not in "(),")
