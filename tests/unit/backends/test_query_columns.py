"""Which columns of a query's tables reach its result unchanged."""

from __future__ import annotations

import pytest

from ematix_flow.backends.spark_sql.query_columns import unchanged_columns

RESULTS = ("a", "B", "c", "a.b")


@pytest.mark.parametrize(
    ("sql", "handed_on"),
    [
        ("SELECT * FROM t", {"a", "b", "c", "a.b"}),
        ("SELECT e.*, u.a FROM t e JOIN u ON u.id = e.id", {"a", "b", "c", "a.b"}),
        ("SELECT * EXCEPT (b) FROM t", {"a", "c", "a.b"}),
        ("SELECT a, x AS c FROM t WHERE d > 1", {"a", "x"}),
        ("SELECT `a.b`, e.a FROM t e JOIN u USING (c)", {"a", "a.b"}),
        ("SELECT a, a AS b FROM t", {"a"}),
        ("SELECT a FROM t LIMIT 3", {"a"}),
        # checked elsewhere
        ("SELECT a FROM t WHERE a > 1", set()),
        ("SELECT *, a + 1 AS z FROM t", {"b", "c", "a.b"}),
        ("SELECT a, a AS z FROM t", set()),
        ("SELECT a, u.b FROM t JOIN u USING (a)", {"b"}),
        ("SELECT a FROM t NATURAL JOIN u", set()),
        ("SELECT upper(a) AS a, CAST(b AS STRING) AS b FROM t", set()),
        ("SELECT DISTINCT a FROM t", set()),
        ("SELECT a FROM t GROUP BY a", set()),
        ("SELECT a FROM t ORDER BY 1 LIMIT 1", set()),
        # more than one query
        ("SELECT a FROM (SELECT a FROM t)", set()),
        ("WITH x AS (SELECT * FROM t) SELECT a FROM x", set()),
        ("SELECT a FROM t UNION ALL SELECT a FROM u", set()),
        ("SELECT a FROM t WHERE b IN (SELECT a FROM u)", set()),
        ("SELECT a FROM", set()),
    ],
)
def test_a_column_is_handed_on_when_nothing_else_looks_at_it(sql: str, handed_on: set[str]) -> None:
    assert unchanged_columns(sql, RESULTS) == handed_on


def test_nothing_is_asked_for_nothing() -> None:
    assert unchanged_columns("SELECT * FROM t", ()) == frozenset()
