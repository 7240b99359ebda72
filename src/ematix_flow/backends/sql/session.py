"""What a SQL database provides: its dialect for DDL and results, and a session with transactions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from sqlglot import exp

from ematix_flow.spec.tables import ColumnSpec
from ematix_flow.spec.types import DataType
from ematix_flow.strategies.sql import StrategyDialect, column, identifier, table_as


class SqlDialect(StrategyDialect, ABC):
    """A strategy's dialect, plus DDL and the reading of results."""

    @abstractmethod
    def native_type(self, data_type: DataType) -> str:
        """The type in a CREATE TABLE."""

    @abstractmethod
    def canonical_type(self, native: str) -> DataType | None:
        """The canonical type of a live column's type; None when there is none."""

    @abstractmethod
    def to_python(self, value: Any, data_type: DataType) -> Any:
        """The canonical Python value (aware UTC datetimes …) of a value that the driver returned."""

    def as_fetchable(self, value: exp.Expr, data_type: DataType) -> exp.Expr:
        """The value in a form that the driver returns unchanged, for `to_python`."""
        return value

    def can_hold(self, declared: DataType, live: DataType, native: str | None) -> bool:
        """Whether a live column of this type stores every value of the declared type unchanged."""
        stored = self.canonical_type(self.native_type(declared))
        return stored == (live if native is None else self.canonical_type(native))

    def update_from(
        self,
        target: exp.Table,
        source: exp.Table,
        sets: Mapping[str, exp.Expr],
        condition: exp.Expr,
    ) -> exp.Expr:
        assigned = [exp.EQ(this=exp.column(identifier(n)), expression=v.copy()) for n, v in sets.items()]
        return exp.Update(
            this=table_as(target, "t"),
            expressions=assigned,
            from_=exp.From(this=table_as(source, "s")),
            where=exp.Where(this=condition),
        )

    def delete_from(
        self, target: exp.Table, source: exp.Table, on: Mapping[str, str], condition: exp.Expr | None
    ) -> exp.Expr:
        matches: list[exp.Expr] = [
            exp.EQ(this=column(mine, "t"), expression=column(theirs, "s")) for mine, theirs in on.items()
        ]
        if condition is not None:
            matches.append(condition)
        return exp.Delete(
            this=table_as(target, "t"),
            using=[table_as(source, "s")],
            where=exp.Where(this=exp.and_(*matches)),
        )

    def analyze_sql(self, table: exp.Table) -> str | None:
        """A statement that gives the optimiser statistics of a filled work table; None without one."""
        return None

    def upsert_clause(self, names: Sequence[str], key: Sequence[str]) -> str:
        """The clause that makes an INSERT overwrite the row with the same key."""
        quote = self.quote
        updates = ", ".join(f"{quote(n)} = excluded.{quote(n)}" for n in names if n not in key)
        return f" ON CONFLICT ({', '.join(quote(n) for n in key)}) DO UPDATE SET {updates}"

    def column_constraint(self, spec: ColumnSpec) -> str:
        """A CHECK for a limit that the database does not enforce by itself."""
        return ""

    # -------------------------------------------------------------- changing a table

    def add_column_clause(self, item: ColumnSpec) -> str:
        words = [self.quote(item.name), self.native_type(item.type), "" if item.nullable else "NOT NULL"]
        return " ".join(word for word in ("ADD COLUMN", *words, self.column_constraint(item)) if word)

    def change_type_clause(self, item: ColumnSpec) -> str:
        """The clause that gives the column the type and nullability of ``item``."""
        return f"ALTER COLUMN {self.quote(item.name)} TYPE {self.native_type(item.type)}"

    def conversion_clause(self, item: ColumnSpec) -> str:
        """The same clause for a person who knows that the values fit."""
        return self.change_type_clause(item)

    def nullability_clause(self, item: ColumnSpec) -> str:
        return f"ALTER COLUMN {self.quote(item.name)} {'DROP' if item.nullable else 'SET'} NOT NULL"

    def manual_statement(self, table: str, clauses: str) -> str:
        """The statement or instruction with which a person changes the table by these clauses."""
        return f"ALTER TABLE {table} {clauses}"

    def convert_value(self, value: exp.Expr, item: ColumnSpec) -> exp.Expr:
        """A stored value converted to the declared type."""
        return exp.cast(value, self.native_type(item.type), dialect=self.name)

    def display_type(self, data_type: DataType) -> str:
        """The type as a diff shows it."""
        return self.native_type(data_type)

    def render(self, tree: exp.Expr) -> str:
        return tree.sql(dialect=self.name, identify=True)

    def quote(self, name: str) -> str:
        return _quote(self.name, name)


@lru_cache(maxsize=4_096)
def _quote(dialect: str, name: str) -> str:
    return identifier(name).sql(dialect=dialect)


class SamplesRefused(Exception):
    """The database refused a statement of samples, and the transaction is of no use any more."""


class SqlSession(ABC):
    """One open connection with explicit transactions. It raises FlowErrors, never a driver's errors."""

    @abstractmethod
    def execute(self, sql: str, params: Mapping[str, Any] | None = None) -> int:
        """Rows affected. ``:name`` placeholders are rendered by ``exp.Placeholder`` in the dialect."""

    @abstractmethod
    def fetch(self, sql: str, params: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]: ...

    def fetch_samples(self, sql: str) -> list[tuple[Any, ...]]:
        """Rows for people, of which a value that Python does not hold is a text.

        A refused statement leaves the transaction as it is; SamplesRefused where the database ends it.
        """
        return self.fetch(sql)

    @abstractmethod
    def begin(self) -> None: ...

    @abstractmethod
    def commit(self) -> None: ...

    @abstractmethod
    def rollback(self) -> None: ...

    def check_deferred_constraints(self) -> None:
        """Check deferred constraints now instead of at the commit; RowRejected when one fails."""
        return


@contextmanager
def transaction(session: SqlSession) -> Iterator[None]:
    """Commit at the end of the block; roll back on any exception, Ctrl-C included."""
    session.begin()
    try:
        yield
    except BaseException:
        session.rollback()
        raise
    session.commit()
