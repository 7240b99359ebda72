"""A mistake in a data probe is an error at its declaration, with the user's line and what to write."""

from __future__ import annotations

import datetime as dt
import inspect
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest

from ematix_probe import probe, source
from ematix_probe.errors import DeclarationError
from ematix_probe.tester import Tester

NAN = float("nan")
Mistake = Callable[[Tester], Any]

MISTAKES: dict[str, tuple[Mistake, str]] = {
    "column without a name": (lambda t: t.column(""), "the name of a column is a text that is not empty"),
    "column of a number": (lambda t: t.column(3), "not 3"),  # type: ignore[arg-type]
    "added text": (lambda t: t.add("not_null"), "add(): it takes an assertion"),  # type: ignore[arg-type]
    "misspelt severity": (lambda t: t.column("a").not_null(severty="warn"), "Did you mean 'severity'?"),
    "unknown severity": (
        lambda t: t.column("a").not_null(severity="bad"),
        'is "fail" or "warn", not \'bad\'',
    ),
    "share above one": (lambda t: t.column("a").not_null(tolerate=5), "tolerate= is a share from 0 to 1"),
    "negative share": (lambda t: t.column("a").unique(tolerate=-0.1), "not -0.1"),
    "share that is no number": (lambda t: t.column("a").unique(tolerate=NAN), "not nan"),
    "empty where": (lambda t: t.column("a").unique(where=" "), "where= is a text that is not empty"),
    "where of a number": (lambda t: t.expression("a > 1", where=1), "where= is a text"),
    "name of a number": (lambda t: t.expression("a > 1", name=1), "name= is a text"),
    "unique of a text": (lambda t: t.unique("id"), "it takes a list of columns, not 'id'"),
    "unique of nothing": (lambda t: t.unique([]), "it needs at least one column"),
    "unique of a column twice": (lambda t: t.unique(["a", "a"]), "a column is named twice: a, a"),
    "between nothing": (lambda t: t.column("a").between(None, None), "it needs at least one bound"),
    "between upside down": (lambda t: t.column("a").between(5, 1), "the lower bound 5 is above"),
    "between NaN": (lambda t: t.column("a").between(NAN, 1), "NaN is no bound"),
    "between NaN decimal": (lambda t: t.column("a").between(0, Decimal("sNaN")), "NaN is no bound"),
    "between types": (lambda t: t.column("a").between(1, "z"), "1 and 'z' cannot be compared"),
    "between booleans": (lambda t: t.column("a").between(False, True), "not with False"),
    "between lists": (lambda t: t.column("a").between([1], [2]), "not with [1]"),  # type: ignore[arg-type]
    "look-ahead": (lambda t: t.column("a").regex("a(?=b)"), "(?:…) is"),
    "look-behind": (lambda t: t.column("a").regex("(?<!a)b"), "(?:…) is"),
    "open bracket": (lambda t: t.column("a").regex("[a"), "ends in the middle"),
    "open group": (lambda t: t.column("a").regex("(a"), "is wrong"),
    "back reference": (lambda t: t.column("a").regex(r"(a)\1"), "refers back to a group"),
    "regex of bytes": (lambda t: t.column("a").regex(b"a"), "the pattern is a text"),  # type: ignore[arg-type]
    "is_in nothing": (lambda t: t.column("a").is_in([]), "it needs at least one value"),
    "is_in a text": (lambda t: t.column("a").is_in("abc"), "it takes a list of values, not 'abc'"),
    "is_in None": (lambda t: t.column("a").is_in([1, None]), "not_null() finds them"),
    "is_in a list": (lambda t: t.column("a").is_in([[1]]), "not with [1]"),
    "row_count without bounds": (lambda t: t.row_count(), "it needs at least one bound"),
    "misspelt at_least": (lambda t: t.row_count(at_lest=1), "Did you mean 'at_least'?"),
    "negative row_count": (lambda t: t.row_count(at_least=-1), "at_least= is a whole number from 0, not -1"),
    "row_count of a part": (lambda t: t.row_count(at_most=1.5), "not 1.5"),  # type: ignore[arg-type]
    "row_count upside down": (lambda t: t.row_count(at_least=5, at_most=1), "lower bound 5 is above"),
    "tolerated row_count": (lambda t: t.row_count(at_least=5, tolerate=0.1), "takes no option 'tolerate'"),
    "negative age": (lambda t: t.freshness("at", within=-1), "must be a finite number"),
    "age without unit": (lambda t: t.freshness("at", within="6"), 'write "90s"'),
    "endless age": (lambda t: t.freshness("at", within=float("inf")), "must be a finite number"),
    "expression of nothing": (lambda t: t.expression("  "), "the condition is a text that is not empty"),
    "foreign key without columns": (lambda t: t.foreign_key([], references="p"), "at least one column"),
    "foreign key of unequal length": (
        lambda t: t.foreign_key(["a", "b"], references="p", referenced_columns=["a"]),
        "2 columns refer to 1 columns",
    ),
    "foreign key to nothing": (lambda t: t.foreign_key("a", references=""), "references= is a text"),
    "schema of nothing": (lambda t: t.schema_match({}), "it needs at least one column"),
    "schema of a text": (lambda t: t.schema_match("id"), "it takes a list of columns, not 'id'"),
    "schema of a number": (lambda t: t.schema_match(7), "it takes a list of columns"),  # type: ignore[arg-type]
    "schema with a column twice": (lambda t: t.schema_match(["a", "a"]), "a column is named twice"),
    "unknown type": (lambda t: t.schema_match({"a": "bigintt"}), "did you mean 'bigint'?"),
    "type with arguments": (lambda t: t.schema_match({"a": "integer(4)"}), "takes no such arguments"),
    "schema with a flag of 1": (lambda t: t.schema_match(["a"], ordered=1), "is True or False"),  # type: ignore[arg-type]
    "schema with where": (lambda t: t.schema_match(["a"], where="a > 1"), "takes no option 'where'"),
    "percentile above": (lambda t: t.column("a").percentile_between(101, 0, 1), "not 101"),
    "percentile below": (lambda t: t.column("a").percentile_between(-0.5, 0, 1), "not -0.5"),
    "percentile of NaN": (lambda t: t.column("a").percentile_between(NAN, 0, 1), "not nan"),
    "percentile by magic": (
        lambda t: t.column("a").percentile_between(0.5, 0, 1, method="fast"),  # type: ignore[arg-type]
        'is "exact" or "sketch"',
    ),
    "negative cardinality": (lambda t: t.column("a").cardinality_between(-1, 5), "low= is a whole number"),
    "cardinality without bounds": (lambda t: t.column("a").cardinality_between(None, None), "one bound"),
    "sum of texts": (lambda t: t.column("a").sum_between("0", "9"), "compared with numbers, not with '0'"),
    "sum of dates": (lambda t: t.column("a").sum_between(None, dt.date(2024, 1, 1)), "compared with numbers"),
    "null share in percent": (lambda t: t.column("a").null_share(at_most=5), "at_most= is a share"),
    "null share upside down": (
        lambda t: t.column("a").null_share(at_most=0.1, at_least=0.5),
        "the lower bound 0.5 is above",
    ),
    "change without bounds": (lambda t: t.row_count_change(), "it needs max_drop= or max_rise="),
    "drop in percent": (
        lambda t: t.row_count_change(max_drop=20),
        "max_drop= is a share from 0 to 1, not 20",
    ),
    "negative rise": (lambda t: t.row_count_change(max_rise=-0.1), "max_rise= is a share from 0, not -0.1"),
    "drift of a table's average": (lambda t: t.drift("average"), "it knows \"row_count\", not 'average'"),
    "drift of a column's weight": (lambda t: t.column("a").drift("weight"), "not 'weight'"),  # type: ignore[arg-type]
    "drift of a percentile without p": (lambda t: t.column("a").drift("percentile"), "needs p="),
    "drift of a sum with p": (lambda t: t.column("a").drift("sum", p=0.5), "no other one takes it"),
    "drift without width": (lambda t: t.drift(sensitivity=0), "sensitivity= is a number above 0"),
    "drift of one run": (lambda t: t.drift(at_least_runs=1), "at_least_runs= is a whole number from 2"),
    "misspelt sensitivity": (lambda t: t.drift(sensitvity=3), "Did you mean 'sensitivity'?"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_wrong_argument_is_refused_with_its_line_and_a_next_step(mistake: str) -> None:
    call, said = MISTAKES[mistake]
    with pytest.raises(DeclarationError) as raised:
        call(Tester())
    error = raised.value
    assert said in error.what
    first, count = inspect.getsourcelines(call)[1], len(inspect.getsourcelines(call)[0])
    file, _, line = str(error.where).rpartition(":")
    assert file == __file__
    assert first <= int(line) < first + count
    assert error.next_step


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "table= or query=, exactly one of them"),
        ({"table": "a", "query": "SELECT 1"}, "exactly one of them"),
        ({"query": "SELECT 1", "schema": "s"}, "schema= belongs to table="),
        ({"table": ""}, "table= is a text that is not empty, not ''"),
        ({"table": 5}, "not 5"),
        ({"table": "a", "name": 5}, "name= is a text that is not empty, not 5"),
    ],
)
def test_a_wrong_subject_is_refused_at_the_decorator(options: dict[str, Any], said: str) -> None:
    with pytest.raises(DeclarationError) as raised:

        @probe.data(source=source.sqlite("a.db"), **options)
        def orders(t: Tester) -> None:
            t.row_count(at_least=1)

    assert said in raised.value.what
    assert str(raised.value.where).startswith(__file__)
    assert raised.value.next_step


def test_a_probe_without_assertions_is_refused() -> None:
    with pytest.raises(DeclarationError, match="the probe 'empty' has no assertion") as raised:

        @probe.data(source=source.sqlite("a.db"), table="a")
        def empty(t: Tester) -> None:
            """Forgets to add any."""

    assert raised.value.next_step == 'add one in its body, as in  t.column("id").not_null()'


@pytest.mark.parametrize("below", [lambda: None, 5, lambda t, other: None])
def test_something_else_than_a_function_of_one_argument_is_refused(below: Any) -> None:
    with pytest.raises(DeclarationError, match="stands above a function of one argument") as raised:
        probe.data(source=source.sqlite("a.db"), table="a")(below)
    assert raised.value.next_step == "write  def orders(t): …  below it"


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: source.postgres("mysql://u:geheim@h/d"), "begins with postgres://"),
        (lambda: source.mysql("postgres://u:geheim@h/d"), "begins with mysql://"),
        (lambda: source.mysql("mysql://u:geheim@h/d?ssl_mod=1"), "MySQL has no option 'ssl_mod'"),
        (lambda: source.mysql("mysql://u:geheim@h:port/d"), "has no host that can be read"),
        (lambda: source.sqlite(""), "sqlite() takes a path, not ''"),
        (lambda: source.duckdb(5), "duckdb() takes a path, not 5"),
        (lambda: source.postgres("postgres://h/d", timeout=0), "timeout= is a number of seconds above 0"),
        (lambda: source.csv("a.csv", delimiter=";;"), "delimiter= takes one character"),
        (lambda: source.csv("a.csv", columns={"a": "intt"}), "did you mean 'int"),
        (lambda: source.csv("a.csv", header="yes"), "header= is True or False"),
        (lambda: source.jsonl("a.jsonl", sample_rows=0), "sample_rows= is a whole number from 1"),
        (lambda: source.parquet("a.parquet", region="eu"), "of a local path takes no region="),
        (lambda: source.parquet("gs://b/a.parquet"), "reads local paths and s3://, not gs://"),
        (lambda: source.parquet("s3://b/a", acces_key="geheim"), "takes no acces_key="),
        (lambda: source.parquet("s3://b/a", secret_key="geheim"), "secret_key is given without access_key"),
        (lambda: source.s3_parquet(bucket="", key="a", region="eu"), "bucket= takes a text"),
        (lambda: source.delta("a", version=-1), "version= is a whole number from 0"),
        (lambda: source.iceberg(), "takes a path, or a catalog and a table"),
        (lambda: source.frame([1, 2]), "takes a frame of pandas, polars, pyarrow or Spark, not list"),
        (lambda: source.spark(table="a", query="b"), "takes table= or query=, not both"),
        (lambda: source.spark("session"), "takes a SparkSession, not str"),
        (lambda: probe.data(source=5, table="a"), "not int"),
        (lambda: probe.data(source="postgres://u:geheim@h/d", table="a"), "not a url"),
    ],
)
def test_a_wrong_source_is_refused_at_its_line_and_shows_no_secret(
    make: Callable[[], Any], said: str
) -> None:
    with pytest.raises(DeclarationError) as raised:
        make()
    assert said in raised.value.what
    assert "geheim" not in str(raised.value)
    assert str(raised.value.where).startswith(__file__)


SAME_LABELS: dict[str, Mistake] = {
    "row_count_change": lambda t: (t.row_count_change(max_drop=0.1), t.row_count_change(max_rise=0.1)),
    "a.average.drift": lambda t: t.column("a").drift("average").drift("average", sensitivity=9),
    "a.between": lambda t: t.column("a").between(0, None).between(None, 9),
    "same": lambda t: t.column("a").not_null(name="same").unique(name="same"),
}


@pytest.mark.parametrize("label", SAME_LABELS)
def test_two_assertions_of_one_label_are_refused(label: str) -> None:
    with pytest.raises(DeclarationError, match=f"two assertions of the probe 'orders' are called '{label}'"):
        probe.data(source=source.sqlite("a.db"), table="orders", name="other")(_orders(SAME_LABELS[label]))


def test_assertions_of_other_rows_have_a_label_each() -> None:
    def declared(t: Tester) -> None:
        t.row_count_change(max_drop=0.1, where="country =\n 'DE'").row_count_change(max_drop=0.1)
        t.column("a").not_null(where="id > 1").not_null(where="id > 1", name="my own")

    found = probe.data(source=source.sqlite("a.db"), table="orders")(declared)
    assert found.assertion_names() == [
        "row_count_change where country = 'DE'",
        "row_count_change",
        "a.not_null where id > 1",
        "my own",
    ]


@pytest.mark.parametrize(
    ("mistake", "next_step"),
    [
        (lambda t: t.column("a").not_null(tolerate=5), "write  tolerate=0.05  for 5 %"),
        (lambda t: t.column("a").not_null(where=""), "leave where= out"),
        (lambda t: probe.data(_orders), "write  @probe.data(source=…"),
        (
            lambda t: probe.data(source=source.sqlite("a.db"), query="delete from a"),
            'write  query="SELECT …"',
        ),
    ],
)
def test_the_next_step_is_what_to_write(mistake: Mistake, next_step: str) -> None:
    with pytest.raises(DeclarationError) as raised:
        mistake(Tester())
    assert str(raised.value.next_step).startswith(next_step)


def _orders(body: Mistake) -> Callable[[Tester], object]:
    def orders(t: Tester) -> None:
        body(t)

    return orders
