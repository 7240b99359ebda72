"""Data probes of frames in memory: NULL in pandas, nanoseconds, names, and frames that cannot be read."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from ematix_probe import probe, source
from ematix_probe.report import RunReport
from ematix_probe.tester import Tester

TIME = dt.datetime(2024, 6, 15, 12, tzinfo=dt.timezone.utc)


def run(frame: Any, declare: Any, **options: Any) -> RunReport:
    @probe.data(source=frame, **options)
    def framed(t: Tester) -> None:
        declare(t)

    return framed.run()


def test_nan_nat_and_none_are_null_in_columns_of_numpy() -> None:
    frame = pd.DataFrame(
        {
            "x": [1.0, float("nan"), 3.0],
            "at": pd.to_datetime(["2024-01-01", None, "2024-01-02"]),
            "text": ["a", None, "b"],
            "kind": pd.Categorical(["a", None, "a"]),
            "whole": pd.array([1, None, 3], dtype="Int64"),
            "yes": [True, False, True],
        }
    )
    report = run(frame, lambda t: [t.column(name).not_null() for name in frame.columns])
    assert [each.failing for each in report.assertions] == [1, 1, 1, 1, 1, 0]
    types = {
        "x": "double",
        "at": "timestamp",
        "text": "text",
        "kind": "text",
        "whole": "bigint",
        "yes": "boolean",
    }
    assert run(frame, lambda t: t.schema_match(types)).verdict == "pass"


@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Berlin"])
def test_times_in_nanoseconds_are_compared_and_counted_exactly(zone: str | None) -> None:
    first = int(TIME.timestamp()) * 10**9
    times = pd.DatetimeIndex([pd.Timestamp(first), pd.Timestamp(first + 1), pd.NaT])
    times = times if zone is None else times.tz_localize("UTC").tz_convert(zone)
    frame = pd.DataFrame({"at": times})
    utc = times[0].to_pydatetime()

    def declare(t: Tester) -> None:
        t.column("at").unique().cardinality_between(2, 2).between(utc, utc)
        t.column("at").between(dt.datetime.min, dt.datetime.max, name="any time").is_in([utc])
        t.column("at").percentile_between(0.5, utc, utc).freshness(within="36500d")

    report = run(frame, declare)
    assert [(each.verdict, each.failing) for each in report.assertions] == [
        ("pass", 0),
        ("pass", None),
        ("fail", 1),
        ("pass", 0),
        ("fail", 1),
        ("pass", None),
        ("pass", None),
    ], report
    assert len(report.assertions[2].samples) == 1


def test_numbers_as_names_of_columns_are_texts() -> None:
    assert run(pd.DataFrame({0: [1, None]}), lambda t: t.column("0").not_null()).assertions[0].failing == 1


@pytest.mark.parametrize(
    ("frame", "said"),
    [
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), "two columns with the name 'a'"),
        (pd.DataFrame({"a": [1, "x"]}, dtype=object), "values of several types"),
        (pa.table([[1], [2]], names=["a", "a"]), "two columns with the name 'a'"),
        (pl.DataFrame({"a": [1]}).lazy().select("b"), "b"),
        (pl.DataFrame({"a": ["x"]}).lazy().select(pl.col("a").cast(pl.Int64)), "x"),
    ],
    ids=["pandas names", "pandas types", "arrow names", "lazy name", "lazy cast"],
)
def test_a_frame_that_cannot_be_read_is_an_error_of_every_assertion(frame: Any, said: str) -> None:
    report = run(frame, lambda t: t.column("a").not_null().between(0, 1))
    assert [each.verdict for each in report.assertions] == ["error", "error"]
    assert said in report.assertions[1].message
    assert "Traceback" not in report.assertions[1].message


def test_a_frame_is_found_by_its_name_in_a_query() -> None:
    frame = source.frame(pl.DataFrame({"a": [1, 2, 3]}), name="orders")
    report = run(
        frame, lambda t: t.row_count(at_least=2, at_most=2), query="SELECT * FROM Orders WHERE a > 1"
    )
    assert report.verdict == "pass"
    report = run(frame, lambda t: t.row_count(at_least=2), query="SELECT * FROM other")
    assert "there is no table 'other' next to a frame" in report.assertions[0].message


def test_a_query_with_parts_that_use_the_frame_twice_is_read(tmp_path: Any) -> None:
    frame = source.frame(pa.table({"a": [1, 2, 2], "b": [1, 1, 1]}), name="t")
    query = """
        WITH x AS (SELECT a, count(*) AS n FROM t GROUP BY a)
        SELECT x.a, x.n, t.b FROM x JOIN t ON t.a = x.a WHERE x.a IN (SELECT a FROM t)
    """

    def declare(t: Tester) -> None:
        t.row_count(at_least=3, at_most=3)
        t.column("a").unique()
        t.foreign_key("a", references="t")

    assert [each.verdict for each in run(frame, declare, query=query).assertions] == ["pass", "fail", "pass"]


def test_a_stream_a_dataset_and_a_batch_are_frames() -> None:
    table = pa.table({"a": [1, 1, None]})
    for frame in (table.to_reader(), ds.dataset(table), table.to_batches()[0], ds.dataset(table).scanner()):
        report = run(frame, lambda t: t.column("a").not_null().unique())
        assert [each.failing for each in report.assertions] == [1, 2]
