"""The SQL functions of an engine that normalisers and casts need. Every method returns a tree, never text."""

from __future__ import annotations

import datetime as dt
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from decimal import Decimal

from sqlglot import exp

from ematix_flow.spec.normalizer_arguments import Scalar
from ematix_flow.spec.portable_regex import replacement_parts, translate, write_replacement
from ematix_flow.spec.types import DataType

WHITESPACE = " \t\n\v\f\r"
UTC = "UTC"
_REJECTION = re.compile(r"<<ematix_flow: (.*?)>>", re.DOTALL)
_MAX_SHOWN = 80


def find_rejection(text: str) -> str | None:
    """The message of our SQL that refused a value, found in a driver's error."""
    found = _REJECTION.search(text)
    return found[1].replace("''", "'") if found else None


@dataclass(frozen=True)
class TypedValue:
    """A column's value as a tree, with its type if known."""

    tree: exp.Expression
    type: DataType | None

    @property
    def kind(self) -> str:
        return self.type.kind if self.type else ""


def text(value: str) -> exp.Expression:
    return exp.Literal.string(value)


def number(value: int | float | Decimal) -> exp.Expression:
    """A number without exponent, so that every engine reads a decimal."""
    exact = (
        value if isinstance(value, Decimal) else Decimal(repr(value) if isinstance(value, float) else value)
    )
    tree = exp.Literal.number(format(abs(exact), "f"))
    return exp.Neg(this=tree) if exact < 0 else tree


def call(name: str, *arguments: exp.Expression) -> exp.Expression:
    return exp.Anonymous(this=name, expressions=list(arguments))


def case(
    *branches: tuple[exp.Expression, exp.Expression], otherwise: exp.Expression | None = None
) -> exp.Expression:
    return exp.Case(ifs=[exp.If(this=when, true=then) for when, then in branches], default=otherwise)


def is_null(tree: exp.Expression) -> exp.Expression:
    return exp.Is(this=tree, expression=exp.Null())


def all_of(*conditions: exp.Expression) -> exp.Expression:
    tree = conditions[0]
    for condition in conditions[1:]:
        tree = exp.And(this=tree, expression=condition)
    return tree


def concat(*parts: exp.Expression) -> exp.Expression:
    """The texts joined; NULL if one is NULL."""
    tree = parts[0]
    for part in parts[1:]:
        tree = exp.DPipe(this=tree, expression=part)
    return tree if len(parts) == 1 else exp.Paren(this=tree)


class SqlFunctions(ABC):
    """One engine's functions. A tree may appear twice in a result: callers pass columns or copies."""

    name: str  # sqlglot's name of the dialect
    flavour: str  # of its regular expressions, see spec.portable_regex
    folds_case: bool  # whether names that differ only in case are the same

    def fence(self, select: exp.Select) -> exp.Select:
        """The same rows, computed once, for an engine that would inline a subquery's expressions."""
        return select

    def from_source(self, tree: exp.Expression, data_type: DataType | None) -> exp.Expression:
        """A source column as the first value of markers and transforms."""
        return tree

    # --- types ---

    @abstractmethod
    def type_name(self, data_type: DataType) -> str:
        """The type in a CAST. A String is unbounded here: a cast to a length would cut."""

    def cast(self, tree: exp.Expression, data_type: DataType, column: str = "") -> exp.Expression:
        """The engine's own cast. ``column`` is for the error of an engine whose casts never fail."""
        return exp.Cast(this=tree, to=exp.DataType.build(self.type_name(data_type), dialect=self.name))

    def convert(self, tree: exp.Expression, data_type: DataType) -> exp.Expression:
        """A cast of a value that is known to fit."""
        return self.cast(tree, data_type)

    def to_text(self, tree: exp.Expression) -> exp.Expression:
        return self.cast(tree, DataType("text"))

    def temporal(self, tree: exp.Expression, data_type: DataType) -> exp.Expression:
        """A value of a date or time type in the engine's storage format."""
        return tree

    def literal(self, value: Scalar) -> exp.Expression:
        if isinstance(value, bool):
            return exp.Boolean(this=value)
        if isinstance(value, str):
            return text(value)
        if isinstance(value, dt.datetime):
            return self.timestamp_constant(value)
        if isinstance(value, dt.date):
            return self.date_from_iso(text(value.isoformat()))
        return number(value)

    def timestamp_constant(self, value: dt.datetime) -> exp.Expression:
        """A timestamp constant, with or without zone as the value has one."""
        if value.tzinfo is None:
            return self.from_utc(self.timestamp_from_iso(text(value.isoformat(" ") + "+00:00")))
        return self.timestamp_from_iso(text(value.astimezone(dt.timezone.utc).isoformat(" ")))

    # --- text ---

    @abstractmethod
    def trim(self, tree: exp.Expression) -> exp.Expression:
        """The text without WHITESPACE at both ends."""

    def lower(self, tree: exp.Expression) -> exp.Expression:
        return call("LOWER", tree)

    def upper(self, tree: exp.Expression) -> exp.Expression:
        return call("UPPER", tree)

    def left(self, tree: exp.Expression, length: int) -> exp.Expression:
        return call("LEFT", tree, number(length))

    def replace(self, tree: exp.Expression, old: str, new: str) -> exp.Expression:
        return call("REPLACE", tree, text(old), text(new))

    @abstractmethod
    def matches(self, tree: exp.Expression, pattern: str) -> exp.Expression:
        """Whether a portable pattern is found in the text."""

    def regex_replace(
        self,
        tree: exp.Expression,
        pattern: str,
        replacement: str,
        *,
        everywhere: bool = True,
        ignore_case: bool = False,
    ) -> exp.Expression:
        flags = ("g" if everywhere else "") + ("i" if ignore_case else "")
        written = write_replacement(replacement_parts(replacement), self.flavour)
        arguments = [tree, text(translate(pattern, self.flavour)), text(written)]
        return call("REGEXP_REPLACE", *arguments, *([text(flags)] if flags else []))

    def rewrite(self, tree: exp.Expression, pattern: str, replacement: str) -> exp.Expression:
        """`regex_replace` for a pattern that begins with ``^``, so that there is one match at most."""
        return self.regex_replace(tree, pattern, replacement, everywhere=False)

    # --- dates and times ---

    def timestamp_from_iso(self, tree: exp.Expression) -> exp.Expression:
        """A point in time from ``2024-1-2 3:04:05[.678]+00:00``, whose parts are known to be valid."""
        return self.convert(tree, DataType("timestamp_tz"))

    def date_from_iso(self, tree: exp.Expression) -> exp.Expression:
        return self.convert(tree, DataType("date"))

    def to_utc(self, tree: exp.Expression) -> exp.Expression:
        """The point in time of a time without zone, taken as UTC."""
        return exp.AtTimeZone(this=tree, zone=text(UTC))

    def from_utc(self, tree: exp.Expression) -> exp.Expression:
        """The UTC time, without zone, of a point in time."""
        return self.local(tree, UTC)

    def local(self, tree: exp.Expression, zone: str) -> exp.Expression:
        """The local time in a zone, without zone, of a point in time."""
        return exp.AtTimeZone(this=tree, zone=text(zone))

    def start_of(self, unit: str, tree: exp.Expression) -> exp.Expression:
        """The start of the second, …, year of a time without zone."""
        return call("DATE_TRUNC", text(unit), tree)

    # --- numbers ---

    def less(self, left: exp.Expression, right: exp.Expression) -> exp.Expression:
        return exp.LT(this=left, expression=right)

    def equal(self, left: exp.Expression, right: exp.Expression) -> exp.Expression:
        return exp.EQ(this=left, expression=right)

    def round(self, tree: exp.Expression, digits: int, data_type: DataType | None) -> exp.Expression:
        """Half away from zero. A binary fraction is rounded by its shortest decimal form."""
        return call("ROUND", tree, number(digits))

    def is_whole(self, tree: exp.Expression, data_type: DataType | None) -> exp.Expression:
        return exp.EQ(this=tree, expression=call("FLOOR", tree.copy()))

    def decimal_of(self, tree: exp.Expression, data_type: DataType) -> exp.Expression:
        """A binary fraction as a decimal type, by its shortest decimal form, half away from zero."""
        return self.cast(self.to_text(tree), data_type)

    def random(self) -> exp.Expression:
        """A random number from 0 to below 1 for each row."""
        return call("RANDOM")

    # --- errors ---

    @abstractmethod
    def raise_error(self, message: exp.Expression, data_type: DataType) -> exp.Expression:
        """An expression that fails with the message when it is evaluated.

        ``data_type`` is its nominal type.
        """

    def reject(self, column: str, tree: exp.Expression, what: str, data_type: DataType) -> exp.Expression:
        """Fail with the column's name and the value, in a form that `find_rejection` finds."""
        shown = self.left(tree, _MAX_SHOWN)
        message = concat(text(f"<<ematix_flow: column '{column}': '"), shown, text(f"' {what}>>"))
        return self.raise_error(message, data_type)
