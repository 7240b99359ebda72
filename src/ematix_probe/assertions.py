"""Assertions as frozen values: what must hold for the rows of a source. Pure, with a JSON round trip.

How an assertion is measured is in `compiling`, how a measure becomes a verdict in `judging`.

The rules that hold on every source:

- NULL: ``not_null`` and ``null_share`` count it; every other rule ignores rows whose value is NULL.
  ``unique`` ignores a key of which any part is NULL. ``expression`` fails only where the condition is false:
  a condition that is NULL passes, as in a CHECK constraint.
- NaN is a value: it is not null, it is outside of every range, and two NaN are equal.
- Texts are compared exactly: case, accents and trailing blanks count.
- ``where`` limits an assertion to the rows for which the condition is true.
- ``tolerate`` is the share of the checked rows (those that ``where`` leaves) that may fail, from 0 to 1.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

Severity = Literal["fail", "warn"]
Bound = int | float | decimal.Decimal | str | dt.date | dt.datetime
Metric = Literal["row_count", "null_share", "sum", "average", "percentile", "cardinality"]


@dataclass(frozen=True, kw_only=True)
class Options:
    """What every assertion takes."""

    severity: Severity = "fail"
    where: str | None = None
    tolerate: float = 0.0
    name: str | None = None


@dataclass(frozen=True)
class Assertion:
    """The base of all assertions. ``kind`` names it in JSON."""

    kind: ClassVar[str]
    by_row: ClassVar[bool] = False  # a single row passes or fails, so that failing rows can be set aside

    options: Options = dataclasses.field(default_factory=Options, kw_only=True)

    @property
    def label(self) -> str:
        """The name of its result: the declared one, else one made from its arguments and ``where=``."""
        if self.options.name or not self.options.where:
            return self.options.name or self.default_label
        return f"{self.default_label} where {' '.join(self.options.where.split())}"

    @property
    def default_label(self) -> str:
        raise NotImplementedError

    def to_json(self) -> dict[str, Any]:
        fields = {
            f.name: encode_value(getattr(self, f.name))
            for f in dataclasses.fields(self)
            if f.name != "options"
        }
        given = dataclasses.asdict(self.options)
        return {"kind": self.kind, **fields, "options": given}


@dataclass(frozen=True)
class NotNull(Assertion):
    kind = "not_null"
    by_row = True
    column: str

    @property
    def default_label(self) -> str:
        return f"{self.column}.not_null"


@dataclass(frozen=True)
class Unique(Assertion):
    """No two rows have the same key. A key of one column is declared on the column."""

    kind = "unique"
    by_row = True  # every row of a repeated key fails
    columns: tuple[str, ...]

    @property
    def default_label(self) -> str:
        if len(self.columns) == 1:
            return f"{self.columns[0]}.unique"
        return f"unique_group({', '.join(self.columns)})"


@dataclass(frozen=True)
class Between(Assertion):
    """``low`` and ``high`` belong to the range; None leaves that end open."""

    kind = "between"
    by_row = True
    column: str
    low: Bound | None
    high: Bound | None

    @property
    def default_label(self) -> str:
        return f"{self.column}.between"


@dataclass(frozen=True)
class Regex(Assertion):
    """A part of the text matches the pattern, unless the pattern has ``^`` and ``$``."""

    kind = "regex"
    by_row = True
    column: str
    pattern: str

    @property
    def default_label(self) -> str:
        return f"{self.column}.regex"


@dataclass(frozen=True)
class IsIn(Assertion):
    kind = "is_in"
    by_row = True
    column: str
    values: tuple[Bound | bool, ...]

    @property
    def default_label(self) -> str:
        return f"{self.column}.enum"


@dataclass(frozen=True)
class Expression(Assertion):
    """A condition in the SQL of the source that no row makes false."""

    kind = "expression"
    by_row = True
    sql: str

    @property
    def default_label(self) -> str:
        return f"expression({' '.join(self.sql.split())})"


@dataclass(frozen=True)
class ForeignKey(Assertion):
    """Each key is a key of another table (or query) of the same source. A key with a NULL part is ignored."""

    kind = "foreign_key"
    by_row = True
    columns: tuple[str, ...]
    references: str  # schema.table, or table
    referenced_columns: tuple[str, ...]

    @property
    def default_label(self) -> str:
        return f"foreign_key({', '.join(self.columns)} -> {self.references})"


@dataclass(frozen=True)
class RowCount(Assertion):
    kind = "row_count"
    at_least: int | None = None
    at_most: int | None = None

    @property
    def default_label(self) -> str:
        return "row_count"


@dataclass(frozen=True)
class Freshness(Assertion):
    """The newest value is at most ``within`` seconds old. No row, or only NULLs, fails."""

    kind = "freshness"
    column: str
    within: float

    @property
    def default_label(self) -> str:
        return f"freshness({self.column})"


@dataclass(frozen=True)
class PercentileBetween(Assertion):
    """The ``p``-th percentile: the smallest value that a share of ``p`` of the values does not exceed.

    ``method="sketch"`` allows an approximation where the source has one; the result says which it used.
    """

    kind = "percentile_between"
    column: str
    p: float  # from 0 to 1
    low: Bound | None
    high: Bound | None
    method: Literal["exact", "sketch"] = "exact"

    @property
    def default_label(self) -> str:
        return f"{self.column}.p{self.p * 100:g}_between"


@dataclass(frozen=True)
class CardinalityBetween(Assertion):
    """The number of different values that are not NULL."""

    kind = "cardinality_between"
    column: str
    low: int | None
    high: int | None

    @property
    def default_label(self) -> str:
        return f"{self.column}.cardinality_between"


@dataclass(frozen=True)
class SumBetween(Assertion):
    """The sum of the values that are not NULL; 0 for no values."""

    kind = "sum_between"
    column: str
    low: Bound | None
    high: Bound | None

    @property
    def default_label(self) -> str:
        return f"{self.column}.sum_between"


@dataclass(frozen=True)
class NullShare(Assertion):
    """The share of NULLs among the checked rows, from 0 to 1. Of no rows it is 0."""

    kind = "null_share"
    column: str
    at_most: float
    at_least: float = 0.0

    @property
    def default_label(self) -> str:
        return f"{self.column}.null_share"


@dataclass(frozen=True)
class SchemaMatch(Assertion):
    """The source has these columns, with these types where one is given.

    ``columns`` are pairs of a name and a type in plain words (`ematix_probe.column_types`) or None.
    """

    kind = "schema_match"
    columns: tuple[tuple[str, str | None], ...]
    allow_extra: bool = False
    ordered: bool = False

    @property
    def default_label(self) -> str:
        return "schema_match"


@dataclass(frozen=True)
class RowCountChange(Assertion):
    """The number of rows against that of the last recorded run: how far it may fall or rise, as shares."""

    kind = "row_count_change"
    max_drop: float | None = None
    max_rise: float | None = None

    @property
    def default_label(self) -> str:
        return "row_count_change"


@dataclass(frozen=True)
class Drift(Assertion):
    """A metric stays inside the band that its recorded past gives (`ematix_probe.drift`)."""

    kind = "drift"
    metric: Metric
    column: str | None = None
    p: float | None = None  # of metric="percentile"
    sensitivity: float = 4.0  # how many robust deviations the band is wide, on each side
    at_least_runs: int = 5  # with fewer recorded runs it passes and says so

    @property
    def default_label(self) -> str:
        measured = self.metric if self.p is None else f"p{self.p * 100:g}"
        return f"{self.column}.{measured}.drift" if self.column else f"{measured}.drift"


KINDS: dict[str, type[Assertion]] = {
    each.kind: each
    for each in (
        NotNull,
        Unique,
        Between,
        Regex,
        IsIn,
        Expression,
        ForeignKey,
        RowCount,
        Freshness,
        PercentileBetween,
        CardinalityBetween,
        SumBetween,
        NullShare,
        SchemaMatch,
        RowCountChange,
        Drift,
    )
}


def assertion_from_json(value: Mapping[str, Any]) -> Assertion:
    """The assertion that `Assertion.to_json` wrote."""
    kind = KINDS[value["kind"]]
    fields = {
        f.name: decode_value(value[f.name])
        for f in dataclasses.fields(kind)
        if f.name != "options" and f.name in value
    }
    return kind(**fields, options=Options(**value.get("options", {})))


def encode_value(value: Any) -> Any:
    """A value as JSON: what JSON cannot hold becomes an object with its type's name."""
    if isinstance(value, decimal.Decimal):
        return {"decimal": str(value)}
    if isinstance(value, dt.datetime):
        return {"datetime": value.isoformat()}
    if isinstance(value, dt.date):
        return {"date": value.isoformat()}
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return {"float": str(value)}
    if isinstance(value, tuple):
        return [encode_value(each) for each in value]
    return value


def decode_value(value: Any) -> Any:
    """The value that `encode_value` wrote; lists come back as tuples."""
    if isinstance(value, list):
        return tuple(decode_value(each) for each in value)
    if isinstance(value, dict):
        ((name, text),) = value.items()
        readers: dict[str, Any] = {
            "decimal": decimal.Decimal,
            "datetime": dt.datetime.fromisoformat,
            "date": dt.date.fromisoformat,
            "float": float,
        }
        return readers[name](text)
    return value
