"""SQLite's spelling of what normalisers need.

SQLite lacks regular expressions, time zones and decimals; the ``EMATIX_…`` functions used here are
Python functions that `functions.sqlite.register` puts on a connection. Dates and times are ISO text,
in UTC; booleans are 0 and 1; decimals are compared and rounded exactly, in any stored form.
"""

from __future__ import annotations

from sqlglot import exp

from ematix_flow.spec.normalizer_arguments import Scalar
from ematix_flow.spec.portable_regex import replacement_parts, translate, write_replacement
from ematix_flow.spec.types import DataType
from ematix_flow.strategies.functions.base import WHITESPACE, SqlFunctions, call, case, concat, number, text


class SQLiteFunctions(SqlFunctions):
    name = "sqlite"
    flavour = "python"
    folds_case = True

    def fence(self, select: exp.Select) -> exp.Select:
        return select.limit(-1).offset(0)

    def type_name(self, data_type: DataType) -> str:
        return "TEXT"  # only text is cast by SQLite itself, see cast()

    def cast(self, tree: exp.Expression, data_type: DataType, column: str = "") -> exp.Expression:
        """SQLite's own casts turn what they cannot read into 0; ours refuse it."""
        if data_type.kind in ("text", "string"):
            return exp.Cast(this=tree, to=exp.DataType.build("TEXT"))
        size = (number(data_type.precision or 0), number(data_type.scale or 0))
        complaint = call("EMATIX_COMPLAINT", tree, text(data_type.kind), *size)
        opening = text(f"<<ematix_flow: column '{column}': ")
        refusal = self.raise_error(concat(opening, complaint, text(">>")), data_type)
        fits = exp.Is(this=complaint.copy(), expression=exp.Null())
        return case((fits, self.convert(tree.copy(), data_type)), otherwise=refusal)

    def convert(self, tree: exp.Expression, data_type: DataType) -> exp.Expression:
        size = (number(data_type.precision or 0), number(data_type.scale or 0))
        return call("EMATIX_CAST", tree, text(data_type.kind), *size)

    def temporal(self, tree: exp.Expression, data_type: DataType) -> exp.Expression:
        return call("EMATIX_TEMPORAL", tree, text(data_type.kind))

    def literal(self, value: Scalar) -> exp.Expression:
        return number(int(value)) if isinstance(value, bool) else super().literal(value)

    def trim(self, tree: exp.Expression) -> exp.Expression:
        return call("TRIM", tree, text(WHITESPACE))

    def lower(self, tree: exp.Expression) -> exp.Expression:
        return call("EMATIX_LOWER", tree)

    def upper(self, tree: exp.Expression) -> exp.Expression:
        return call("EMATIX_UPPER", tree)

    def left(self, tree: exp.Expression, length: int) -> exp.Expression:
        return call("SUBSTR", tree, number(1), number(length))

    def matches(self, tree: exp.Expression, pattern: str) -> exp.Expression:
        return call("EMATIX_MATCHES", tree, text(translate(pattern, self.flavour)))

    def regex_replace(
        self,
        tree: exp.Expression,
        pattern: str,
        replacement: str,
        *,
        everywhere: bool = True,
        ignore_case: bool = False,
    ) -> exp.Expression:
        written = write_replacement(replacement_parts(replacement), self.flavour)
        flags = ("g" if everywhere else "") + ("i" if ignore_case else "")
        return call(
            "EMATIX_REGEX_REPLACE", tree, text(translate(pattern, self.flavour)), text(written), text(flags)
        )

    def timestamp_from_iso(self, tree: exp.Expression) -> exp.Expression:
        return call("EMATIX_TEMPORAL", tree, text("timestamp_tz"))

    def date_from_iso(self, tree: exp.Expression) -> exp.Expression:
        return call("EMATIX_TEMPORAL", tree, text("date"))

    def to_utc(self, tree: exp.Expression) -> exp.Expression:
        return call("EMATIX_TEMPORAL", tree, text("timestamp_tz"))

    def from_utc(self, tree: exp.Expression) -> exp.Expression:
        return call("EMATIX_TEMPORAL", tree, text("timestamp"))

    def local(self, tree: exp.Expression, zone: str) -> exp.Expression:
        return call("EMATIX_LOCAL", tree, text(zone))

    def start_of(self, unit: str, tree: exp.Expression) -> exp.Expression:
        return call("EMATIX_START_OF", text(unit), tree)

    def less(self, left: exp.Expression, right: exp.Expression) -> exp.Expression:
        return exp.LT(this=call("EMATIX_COMPARE", left, right), expression=number(0))

    def equal(self, left: exp.Expression, right: exp.Expression) -> exp.Expression:
        return exp.EQ(this=call("EMATIX_COMPARE", left, right), expression=number(0))

    def round(self, tree: exp.Expression, digits: int, data_type: DataType | None) -> exp.Expression:
        return call("EMATIX_ROUND", tree, number(digits))

    def is_whole(self, tree: exp.Expression, data_type: DataType | None) -> exp.Expression:
        return self.equal(tree, self.round(tree.copy(), 0, data_type))

    def decimal_of(self, tree: exp.Expression, data_type: DataType) -> exp.Expression:
        assert data_type.scale is not None
        return call("EMATIX_ROUND", self.to_text(tree), number(data_type.scale))

    def random(self) -> exp.Expression:
        small = exp.Mod(this=call("RANDOM"), expression=number(1_000_000_000))
        return exp.Div(this=call("ABS", small), expression=exp.Literal.number("1000000000.0"))

    def raise_error(self, message: exp.Expression, data_type: DataType) -> exp.Expression:
        # SQLite drops the message of a Python error, but quotes a wrong JSON path in its own
        return call("JSON_EXTRACT", text("{}"), message)
