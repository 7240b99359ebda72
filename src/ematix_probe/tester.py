"""The fluent API that the body of a data probe gets: each call adds one assertion."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal

from ematix_probe import arguments as check
from ematix_probe.assertions import (
    Assertion,
    Between,
    Bound,
    CardinalityBetween,
    Drift,
    Expression,
    ForeignKey,
    Freshness,
    IsIn,
    Metric,
    NotNull,
    NullShare,
    PercentileBetween,
    Regex,
    RowCount,
    RowCountChange,
    SchemaMatch,
    SumBetween,
    Unique,
)
from ematix_probe.duration import Duration, parse_duration
from ematix_probe.suggestions import did_you_mean


class Tester:
    """Collects the assertions of a data probe. Each takes ``severity=`` and ``name=``; all but the schema's
    take ``where=``, and those that look at single rows take ``tolerate=``."""

    __test__ = False  # pytest: this is no test class

    def __init__(self) -> None:
        self._assertions: list[Assertion] = []

    @property
    def assertions(self) -> tuple[Assertion, ...]:
        return tuple(self._assertions)

    if not TYPE_CHECKING:  # which finds unknown names itself

        def __getattr__(self, name: str) -> Any:
            raise _unknown_attribute(self, "t", name)

    def column(self, name: str) -> ColumnTester:
        return ColumnTester(self, check.text("column", "the name of a column", name))

    def add(self, assertion: Assertion) -> Tester:
        """Add an assertion that is already a value."""
        if not isinstance(assertion, Assertion):
            raise check.wrong("add", f"it takes an assertion, not {assertion!r}")
        self._assertions.append(assertion)
        return self

    def unique(self, columns: Sequence[str], **options: Any) -> Tester:
        """No two rows have the same values in these columns."""
        given = check.options_of("unique", options)
        return self.add(Unique(check.column_names("unique", columns), options=given))

    def row_count(self, *, at_least: int | None = None, at_most: int | None = None, **options: Any) -> Tester:
        given = check.options_of("row_count", options, "at_least", "at_most", tolerate=False)
        low = check.count("row_count", "at_least", at_least)
        high = check.count("row_count", "at_most", at_most)
        check.value_range("row_count", low, high)
        return self.add(RowCount(low, high, options=given))

    def freshness(self, column: str, *, within: Duration, **options: Any) -> Tester:
        """The newest value of the column is at most ``within`` old."""
        self.column(column).freshness(within=within, **options)
        return self

    def expression(self, sql: str, **options: Any) -> Tester:
        """A condition in the SQL of the source, which no row may make false."""
        given = check.options_of("expression", options)
        return self.add(Expression(check.text("expression", "the condition", sql), options=given))

    def foreign_key(
        self,
        columns: str | Sequence[str],
        *,
        references: str,
        referenced_columns: str | Sequence[str] | None = None,
        **options: Any,
    ) -> Tester:
        """Each key is a key of ``references``, another table of the source."""
        given = check.options_of("foreign_key", options, "references", "referenced_columns")
        names, others = (
            check.column_names("foreign_key", [listed] if isinstance(listed, str) else listed)
            for listed in (columns, columns if referenced_columns is None else referenced_columns)
        )
        if len(others) != len(names):
            raise check.wrong("foreign_key", f"{len(names)} columns refer to {len(others)} columns")
        table = check.text("foreign_key", "references=", references)
        return self.add(ForeignKey(names, table, others, options=given))

    def schema_match(
        self,
        columns: Mapping[str, str | None] | Sequence[str],
        *,
        allow_extra: bool = False,
        ordered: bool = False,
        **options: Any,
    ) -> Tester:
        """The source has exactly these columns: names, or a mapping of name and type."""
        method = "schema_match"
        given = check.options_of(method, options, "allow_extra", "ordered", tolerate=False, where=False)
        names = check.column_names(method, columns)
        kinds = columns if isinstance(columns, Mapping) else {}
        pairs = tuple(
            (name, None if kinds.get(name) is None else check.column_type(method, kinds[name]))
            for name in names
        )
        extra, order = check.flag(method, "allow_extra", allow_extra), check.flag(method, "ordered", ordered)
        return self.add(SchemaMatch(pairs, extra, order, options=given))

    def row_count_change(
        self, *, max_drop: float | None = None, max_rise: float | None = None, **options: Any
    ) -> Tester:
        """The row count against that of the last recorded run, as shares: 0.2 is a fifth."""
        method = "row_count_change"
        given = check.options_of(method, options, "max_drop", "max_rise", tolerate=False)
        if max_drop is None and max_rise is None:
            raise check.wrong(method, "it needs max_drop= or max_rise=")
        if max_drop is not None:
            check.share(method, "max_drop", max_drop)
        if max_rise is not None and (not check.is_number(max_rise) or max_rise < 0):
            raise check.wrong(method, f"max_rise= is a share from 0, not {max_rise!r}")
        return self.add(RowCountChange(max_drop, max_rise, options=given))

    def drift(self, metric: Metric = "row_count", **named: Any) -> Tester:
        """The metric of the whole table stays in the band that its past gives."""
        if metric != "row_count":
            raise check.wrong("drift", f'of the whole table it knows "row_count", not {metric!r}')
        return self.add(_drift(metric, None, None, named))


class ColumnTester:
    """One column of the source. Every call adds an assertion and returns the same column."""

    __test__ = False

    def __init__(self, tester: Tester, name: str) -> None:
        self._tester, self._name = tester, name

    if not TYPE_CHECKING:  # which finds unknown names itself

        def __getattr__(self, name: str) -> Any:
            raise _unknown_attribute(self, "t.column(…)", name)

    def _add(self, assertion: Assertion) -> ColumnTester:
        self._tester.add(assertion)
        return self

    def not_null(self, **options: Any) -> ColumnTester:
        return self._add(NotNull(self._name, options=check.options_of("not_null", options)))

    def unique(self, **options: Any) -> ColumnTester:
        return self._add(Unique((self._name,), options=check.options_of("unique", options)))

    def between(self, low: Bound | None, high: Bound | None, **options: Any) -> ColumnTester:
        """``low`` and ``high`` belong to the range; None leaves that end open."""
        given = check.options_of("between", options)
        check.value_range("between", low, high)
        return self._add(Between(self._name, low, high, options=given))

    def regex(self, pattern: str, **options: Any) -> ColumnTester:
        """A part of the text matches; write ``^…$`` for the whole text."""
        given = check.options_of("regex", options)
        return self._add(Regex(self._name, check.pattern("regex", pattern), options=given))

    def is_in(self, values: Iterable[Any], **options: Any) -> ColumnTester:
        given = check.options_of("is_in", options)
        return self._add(IsIn(self._name, check.listed_values("is_in", values), options=given))

    def freshness(self, *, within: Duration, **options: Any) -> ColumnTester:
        """The newest value is at most ``within`` old: ``"6h"``, seconds, a timedelta."""
        given = check.options_of("freshness", options, "within", tolerate=False)
        try:
            seconds = parse_duration(within)
        except ValueError as error:
            raise check.wrong("freshness", f"within= {error}") from None
        return self._add(Freshness(self._name, seconds, options=given))

    def percentile_between(
        self,
        p: float,
        low: Bound | None,
        high: Bound | None,
        *,
        method: Literal["exact", "sketch"] = "exact",
        **options: Any,
    ) -> ColumnTester:
        """The p-th percentile: ``p=0.99`` or ``p=99``. From 0 to 1 it is a share, above 1 a percentage."""
        given = check.options_of("percentile_between", options, "method", tolerate=False)
        share = check.percentile("percentile_between", p)
        check.value_range("percentile_between", low, high)
        if method not in ("exact", "sketch"):
            raise check.wrong("percentile_between", f'method= is "exact" or "sketch", not {method!r}')
        return self._add(PercentileBetween(self._name, share, low, high, method, options=given))

    def cardinality_between(self, low: int | None, high: int | None, **options: Any) -> ColumnTester:
        """The number of different values that are not NULL."""
        given = check.options_of("cardinality_between", options, tolerate=False)
        least = check.count("cardinality_between", "low", low)
        most = check.count("cardinality_between", "high", high)
        check.value_range("cardinality_between", least, most)
        return self._add(CardinalityBetween(self._name, least, most, options=given))

    def sum_between(self, low: Bound | None, high: Bound | None, **options: Any) -> ColumnTester:
        given = check.options_of("sum_between", options, tolerate=False)
        check.value_range("sum_between", low, high)
        for bound in (low, high):
            if bound is not None and not isinstance(bound, (int, float, Decimal)):
                raise check.wrong("sum_between", f"a sum is compared with numbers, not with {bound!r}")
        return self._add(SumBetween(self._name, low, high, options=given))

    def null_share(
        self, *, at_most: float | None = None, at_least: float | None = None, **options: Any
    ) -> ColumnTester:
        given = check.options_of("null_share", options, "at_most", "at_least", tolerate=False)
        if at_most is None and at_least is None:
            raise check.wrong("null_share", "it needs at_most= or at_least=")
        most = check.share("null_share", "at_most", 1.0 if at_most is None else at_most)
        least = check.share("null_share", "at_least", 0.0 if at_least is None else at_least)
        check.value_range("null_share", least, most)
        return self._add(NullShare(self._name, most, least, options=given))

    def drift(self, metric: Metric = "null_share", *, p: float | None = None, **named: Any) -> ColumnTester:
        """The column's metric stays in the band that its past gives."""
        known = ("null_share", "sum", "average", "percentile", "cardinality")
        if metric not in known:
            raise check.wrong("drift", f"of a column it knows {', '.join(known)}, not {metric!r}")
        if (metric == "percentile") != (p is not None):
            raise check.wrong("drift", 'the metric "percentile" needs p=, and no other one takes it')
        return self._add(
            _drift(metric, self._name, None if p is None else check.percentile("drift", p), named)
        )


def _unknown_attribute(tester: object, shown: str, name: str) -> AttributeError:
    known = [each for each in dir(type(tester)) if not each.startswith("_")]
    return AttributeError(f"{shown} has no {name!r}{did_you_mean(name, known)}")


def _drift(metric: Metric, column: str | None, p: float | None, named: dict[str, Any]) -> Drift:
    sensitivity, least = named.pop("sensitivity", 4.0), named.pop("at_least_runs", 5)
    given = check.options_of("drift", named, "sensitivity", "at_least_runs", tolerate=False)
    if not check.is_number(sensitivity) or sensitivity <= 0:
        raise check.wrong("drift", f"sensitivity= is a number above 0, not {sensitivity!r}")
    runs = check.count("drift", "at_least_runs", least)
    if runs is None or runs < 2:
        raise check.wrong("drift", f"at_least_runs= is a whole number from 2, not {least!r}")
    return Drift(metric, column, p, float(sensitivity), runs, options=given)
