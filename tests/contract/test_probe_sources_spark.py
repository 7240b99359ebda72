"""What a data probe does on a session of Spark: one statement, tables, queries, errors of one assertion."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from sqlglot import exp

from ematix_probe import source
from ematix_probe.tester import Tester
from tests.contract.probe_setup import Watched, probe, verdicts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture
def orders(spark: SparkSession) -> Iterator[DataFrame]:
    frame = spark.range(40).selectExpr(
        "id", "id - 5 AS amount", "IF(id % 2 = 0, 'new', 'paid') AS `the state`"
    )
    frame.createOrReplaceTempView("probed_orders")
    yield frame
    spark.catalog.dropTempView("probed_orders")


def declare(t: Tester) -> None:
    t.column("amount").between(0, 100)
    t.column("amuont").not_null()
    t.expression("no_such_function(amount) > 1")
    t.expression("raise_error('broken') > 1")
    t.column("id").unique().percentile_between(0.5, 0, 100, method="sketch")
    t.foreign_key("id", references="probed_orders")
    t.foreign_key("id", references="nowhere")
    t.schema_match({"id": "bigint", "amount": "bigint", "the state": "text"})


def few(t: Tester) -> None:
    t.column("amount").between(0, 100)
    t.foreign_key("id", references="probed_orders")


def test_a_frame_a_table_and_a_query_agree_and_one_assertion_s_error_is_its_own(
    spark: SparkSession, orders: DataFrame
) -> None:
    wanted = ["fail", "error", "error", "error", "pass", "pass", "pass", "error", "pass"]
    framed = probe(source.frame(orders), declare)
    assert verdicts(framed) == wanted
    assert [each["amount"] for each in framed.assertions[0].samples] == [-5, -4, -3, -2, -1]
    assert "no_such_function" in framed.assertions[2].message.lower()
    assert "broken" in framed.assertions[3].message
    assert "(by a sketch)" in framed.assertions[5].message
    assert verdicts(probe(source.spark(spark, table="probed_orders"), few)) == ["fail", "pass"]
    named = source.frame(orders, name="orders")
    query = "SELECT o.* FROM orders AS o WHERE o.id < 40"
    assert verdicts(probe(named, few, query=query)) == ["fail", "pass"]
    missing = probe(source.spark(spark, table="no_such_table"), lambda t: t.row_count(at_least=0))
    assert verdicts(missing) == ["error"]
    assert "no_such_table" in missing.assertions[0].message
    left = [row.tableName for row in spark.sql("SHOW TABLES").collect() if "ematix_probe_" in row.tableName]
    assert left == []


def test_all_assertions_are_one_statement_whose_rows_stay_in_spark(orders: DataFrame) -> None:
    watched = Watched(source.frame(orders))

    def checks(t: Tester) -> None:
        t.column("amount").between(0, 100).not_null().percentile_between(0.5, 0, 100).sum_between(0, 10_000)
        t.column("the state").is_in(["new", "paid"]).regex("^(?:new|paid)$").cardinality_between(2, 2)
        t.unique(["id", "amount"])

    assert verdicts(probe(watched, checks)) == ["fail", *["pass"] * 7]
    assert watched.rows == [1, 5]


def test_repeated_keys_and_their_count_come_from_one_exchange(spark: SparkSession, orders: DataFrame) -> None:
    watched = Watched(source.frame(orders))
    report = probe(watched, lambda t: t.unique(["the state"]))
    assert [row["the state"] for row in report.assertions[0].samples] == ["new"] * 10
    assert report.assertions[0].failing == 40
    measuring, sampling = watched.statements
    assert "GROUP BY" not in sampling.sql("spark")
    named = {cte.alias for cte in measuring.find_all(exp.CTE)}
    (view,) = {table.name for table in measuring.find_all(exp.Table)} - named - {"repeated"}
    orders.createOrReplaceTempView(view)
    explained = spark.sql(f"EXPLAIN {measuring.sql('spark')}").collect()[0].plan
    spark.catalog.dropTempView(view)
    assert "ReusedExchange" in explained
