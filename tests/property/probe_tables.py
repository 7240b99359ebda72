"""Random tables and random assertions over them, which every source of a data probe can hold.

A case follows from its seed alone. Values are few, so that they are often equal and often at an edge.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import math
import unicodedata
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from random import Random
from typing import Any

from ematix_probe import assertions as a
from tests.property.hostile_names import fitting
from tests.property.probe_oracle import Predicate, Row

PARENTS = "parents"
TYPES = (
    *("integer", "bigint", "numeric(10,2)", "numeric(18,6)", "double", "text"),
    *("boolean", "date", "timestamp", "timestamptz", "bytes"),
)
TEXTS = (
    *(
        "",
        " ",
        "a",
        "A",
        "a ",
        " a",
        "aa",
        "ä",
        "a\u0308",
        "Ä",
        "ß",
        "ss",
        "SS",
        "é",
        "e",
        "z",
        "Z",
        "İ",
        "i",
    ),
    *("10", "9", "1e1", "NaN", "null", "a\\b", "\\", "it's", '"', "`", "%", "per%cent", "x\ny", "\t"),
    *("a\u00a0", "列", "\U0001f600", "\uff5e", "\ue000", "2024-01-01", "😀a", "a'); DROP TABLE x; --"),
    *("$1", ":a", "?"),
)
PATTERNS = (
    *(
        "^a$",
        "a",
        "^[a-z]+$",
        r"^\d+$",
        r"\s",
        r"^$",
        r"\\",
        "'",
        "^.$",
        r"a\b",
        "(?:a|z)+ ?$",
        r"^\w*$",
        "A",
    ),
    *(r"^[^\d\s]{2,}$", r"^.*?a", r"[\-\]%]", r"\Bb"),
)
_DAYS = (
    *(dt.date(2024, 1, 1), dt.date(2024, 1, 2), dt.date(2024, 2, 1), dt.date(2024, 6, 14)),
    *(dt.date(2024, 6, 15), dt.date(2024, 6, 16), dt.date(1972, 2, 29), dt.date(2037, 12, 31)),
)
_CLOCKS = (
    *(dt.time(), dt.time(0, 0, 0, 1), dt.time(12), dt.time(23, 59, 59, 999999)),
    dt.time(11, 59, 59, 500000),
)
_ZONES = (
    dt.timezone.utc,
    dt.timezone(dt.timedelta(hours=2)),
    dt.timezone(-dt.timedelta(hours=5, minutes=30)),
)
_DOUBLES = (0.0, -0.0, 0.25, -0.25, 1.5, 100.0, -3.75, 4096.5, 0.125, 123456.75)  # sums exact in any order
_SPECIAL = (math.nan, math.inf, -math.inf)
_SHARES = (0.0, 0.01, 0.07, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 0.999, 1.0)
_NUMBERS = ("integer", "bigint", "numeric", "double")
_TIMES = ("date", "timestamp", "timestamptz")


@dataclass(frozen=True)
class Condition:
    """A condition in SQL and what it means. ``{0}`` stands for the column."""

    column: str
    text: str
    holds: Predicate

    def sql(self, quote: Callable[[str], str]) -> str:
        return self.text.replace("{0}", quote(self.column))


@dataclass(frozen=True)
class Check:
    """An assertion; where it has SQL, its text differs between engines."""

    assertion: a.Assertion
    where: Condition | None = None
    condition: Condition | None = None

    def written(self, quote: Callable[[str], str]) -> a.Assertion:
        found = self.assertion
        if self.condition is not None:
            assert isinstance(found, a.Expression)
            found = dataclasses.replace(found, sql=self.condition.sql(quote))
        if self.where is not None:
            options = dataclasses.replace(found.options, where=self.where.sql(quote))
            found = dataclasses.replace(found, options=options)
        return found


@dataclass(frozen=True)
class Case:
    """A table, another one that it refers to, and assertions over the first."""

    types: Mapping[str, str]
    rows: Sequence[Row]
    parent_types: Mapping[str, str]
    parents: Sequence[Row]
    checks: Sequence[Check]


def random_case(
    seed: object,
    *,
    never: Collection[str] = (),
    types: Sequence[str] = TYPES,
    checked: int = 24,
    most_rows: int = 12,
) -> Case:
    """The case of a seed. ``never``: names, or characters in names, that the source refuses."""
    rng = Random(str(seed))
    columns = {name: rng.choice(types) for name in _names(rng, rng.randint(2, 6), never)}
    parent_types = {name: columns[name] for name in _some(rng, list(columns), 3)}
    if rng.random() < 0.2:  # a type that may not fit
        parent_types[next(iter(parent_types))] = rng.choice(types)
    most = rng.choice((0, 1, 4, most_rows, most_rows))
    rows = [_row(rng, columns) for _ in range(rng.randint(most // 2, most))]
    parents = [_row(rng, parent_types) for _ in range(rng.randint(0, 8))]
    return Case(
        columns, rows, parent_types, parents, [_check(rng, columns, parent_types) for _ in range(checked)]
    )


def _names(rng: Random, count: int, never: Collection[str]) -> list[str]:
    """Names that differ in more than case and accents: MySQL takes others for one."""
    found: dict[str, str] = {}
    known = fitting(never)
    while len(found) < count:
        name = rng.choice(known)
        letters = unicodedata.normalize("NFKD", name.casefold())
        folded = "".join(each for each in letters if not unicodedata.combining(each)).replace("ss", "s")
        found.setdefault(folded, name)
    return list(found.values())


def _some(rng: Random, names: Sequence[str], most: int) -> list[str]:
    return rng.sample(names, rng.randint(1, min(most, len(names))))


def _row(rng: Random, types: Mapping[str, str]) -> Row:
    return {name: None if rng.random() < 0.15 else random_value(rng, kind) for name, kind in types.items()}


# --- values ---


def random_value(rng: Random, plain: str, *, special: bool = True) -> Any:
    base = plain.partition("(")[0]
    if base == "boolean":
        return rng.random() < 0.5
    if base == "integer":
        return rng.choice((0, 1, 2, 3, -1, 10, 2**31 - 1, -(2**31)))
    if base == "bigint":
        return rng.choice((0, 1, 2, 3, -1, 10, 2**53, 2**53 + 1, 2**63 - 1, -(2**63)))
    if base == "numeric":
        scale = int(plain.rpartition(",")[2].rstrip(")"))
        unit = rng.choice((0, 1, 10, 100, -1, 123456, 99999999, -99999999, 150, 10**scale))
        return Decimal(unit).scaleb(-scale)
    if base == "double":
        return rng.choice(_SPECIAL if special and rng.random() < 0.2 else _DOUBLES)
    if base == "text":
        return rng.choice(TEXTS)
    if base == "date":
        return rng.choice(_DAYS)
    if base == "bytes":
        return rng.choice((b"", b"a", b"A", b"\x00", b"\xff\xfe", b"a "))
    time = dt.datetime.combine(rng.choice(_DAYS), rng.choice(_CLOCKS))
    return time if base == "timestamp" else time.replace(tzinfo=rng.choice(_ZONES))


def _bound(rng: Random, plain: str) -> Any:
    """A value to compare with: of the type, between its values, sometimes of another type."""
    if rng.random() < 0.06:
        return rng.choice((5, "b", 0.5, dt.date(2024, 1, 1)))
    base = plain.partition("(")[0]
    if base in _NUMBERS and rng.random() < 0.5:
        near: tuple[Any, ...] = (0.1, 0.5, 1.5, -0.25, Decimal("0.1"), Decimal("1.500"), Decimal("0.005"))
        far: tuple[Any, ...] = (math.inf, -math.inf, 1e300, 10**30, -(10**30), 2**63, Decimal("1E+3"))
        return rng.choice((*near, *far))
    if base in _TIMES:
        if rng.random() < 0.15:
            return rng.choice(("2024-01-02", "2024-06-15T12:00:00"))
        return random_value(rng, rng.choice(_TIMES))
    return "a" if base == "bytes" else random_value(rng, plain, special=False)


def _range(rng: Random, plain: str) -> tuple[Any, Any]:
    low, high = (None if rng.random() < 0.25 else _bound(rng, plain) for _ in "lh")
    low, high = (None if isinstance(each, bool) else each for each in (low, high))
    if low is None and high is None:
        return _range(rng, "integer")
    try:
        return (high, low) if low is not None and high is not None and low > high else (low, high)
    except TypeError:
        return (low, None) if low is not None else (None, high)


# --- assertions ---


def _condition(rng: Random, types: Mapping[str, str]) -> Condition:
    name = rng.choice(list(types))
    if types[name].partition("(")[0] in ("integer", "bigint", "numeric"):
        limit = rng.randint(-1, 3)
        return rng.choice(
            (
                Condition(name, f"{{0}} > {limit}", lambda row: _than(row[name], lambda v: v > limit)),
                Condition(name, f"NOT {{0}} > {limit}", lambda row: _than(row[name], lambda v: v <= limit)),
                Condition(
                    name,
                    f"{{0}} = {limit} OR {{0}} IS NULL",
                    lambda row: row[name] is None or row[name] == limit,
                ),
            )
        )
    if types[name] == "double" and rng.random() < 0.7:  # NaN is above all numbers, where there is one
        if rng.random() < 0.5:
            return Condition(name, "{0} <= 1.5", lambda row: _than(row[name], lambda v: v <= 1.5))
        return Condition(name, "{0} > 1.5", lambda row: _than(row[name], lambda v: not v <= 1.5))
    if rng.random() < 0.5:
        return Condition(name, "{0} IS NULL", lambda row: row[name] is None)
    return Condition(name, "{0} IS NOT NULL", lambda row: row[name] is not None)


def _than(value: Any, test: Callable[[Any], bool]) -> bool | None:
    return None if value is None else test(value)


def _check(rng: Random, types: Mapping[str, str], parent_types: Mapping[str, str]) -> Check:
    names = list(types)
    column = rng.choice(names)
    plain = types[column]
    if rng.random() < 0.02:
        column = "no such column"
    where = _condition(rng, types) if rng.random() < 0.33 else None
    severity: a.Severity = rng.choice(("fail", "fail", "warn"))
    options = a.Options(severity=severity, tolerate=rng.choice((0.0, 0.0, 0.1, 0.25, 0.5, 1.0)))
    whole = a.Options(severity=severity)
    kind = rng.choice(_KINDS)
    if kind is a.Expression:
        return Check(a.Expression("", options=options), where, _condition(rng, types))
    if kind is a.SchemaMatch:
        return Check(_schema(rng, types, whole))
    made = _assertion(rng, kind, column, plain, names, parent_types)
    return Check(dataclasses.replace(made, options=options if made.by_row else whole), where)


_KINDS: tuple[type[a.Assertion], ...] = (
    *(a.NotNull, a.Unique, a.Unique, a.Between, a.Between, a.Regex, a.IsIn, a.IsIn, a.Expression),
    *(a.ForeignKey, a.RowCount, a.Freshness, a.PercentileBetween, a.CardinalityBetween, a.SumBetween),
    *(a.NullShare, a.SchemaMatch),
)


def _assertion(
    rng: Random,
    kind: type[a.Assertion],
    column: str,
    plain: str,
    names: Sequence[str],
    parent_types: Mapping[str, str],
) -> a.Assertion:
    least = rng.randint(0, 8)
    if kind is a.NotNull:
        return a.NotNull(column)
    if kind is a.Unique:
        return a.Unique((column,) if rng.random() < 0.5 else tuple(_some(rng, names, 3)))
    if kind is a.Between:
        return a.Between(column, *_range(rng, plain))
    if kind is a.Regex:
        return a.Regex(column, rng.choice(PATTERNS))
    if kind is a.IsIn:
        return a.IsIn(column, tuple(_bound(rng, plain) for _ in range(rng.randint(1, 4))))
    if kind is a.ForeignKey:
        return _foreign_key(rng, column, parent_types)
    if kind is a.RowCount:
        return a.RowCount(least, None if least % 2 else least + 3)
    if kind is a.Freshness:
        return a.Freshness(column, rng.choice((0.0, 3600.0, 86400.0, 1e9)))
    if kind is a.PercentileBetween:
        return a.PercentileBetween(column, rng.choice(_SHARES), *_range(rng, plain))
    if kind is a.CardinalityBetween:
        return a.CardinalityBetween(column, least, least + 1)
    if kind is a.SumBetween:
        low, high = _range(rng, "numeric(10,2)")
        numbers = [each if isinstance(each, (int, float, Decimal)) else None for each in (low, high)]
        return a.SumBetween(column, *(numbers if any(n is not None for n in numbers) else (0, 10)))
    return a.NullShare(column, rng.choice((0.0, 0.25, 0.5, 1.0)))


def _foreign_key(rng: Random, column: str, parent_types: Mapping[str, str]) -> a.ForeignKey:
    known = list(parent_types)
    if rng.random() < 0.4:
        chosen = tuple(_some(rng, known, 2))
        return a.ForeignKey(chosen, PARENTS, chosen)
    return a.ForeignKey((column,), PARENTS, (column if column in parent_types else known[0],))


def _schema(rng: Random, types: Mapping[str, str], options: a.Options) -> a.SchemaMatch:
    pairs = list(types.items())
    listed = rng.choice((pairs, rng.sample(pairs, len(pairs)), pairs[1:], [*pairs, ("none such", "integer")]))
    typed, extra, ordered = (rng.random() < 0.5 for _ in "teo")
    columns = tuple((name, kind if typed else None) for name, kind in listed)
    if typed and rng.random() < 0.2:
        columns = ((columns[0][0], rng.choice(TYPES)), *columns[1:])
    return a.SchemaMatch(columns, extra, ordered, options=options)
