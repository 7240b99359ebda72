"""A query that names a table as of a version or a time: the clause goes with the name, and nothing else."""

from __future__ import annotations

import pytest

from ematix_flow.backends.spark_sql.query_tables import TimeTravel, parse_query_template
from ematix_flow.errors import SourceFailed


@pytest.mark.parametrize(
    ("sql", "placed", "moment"),
    [
        (
            "SELECT * FROM sales.orders VERSION AS OF 3",
            "SELECT * FROM {t0} AS `orders`",
            TimeTravel("version", "3"),
        ),
        (
            "SELECT o.id FROM orders version as of 3 o WHERE o.id > 1",
            "SELECT o.id FROM {t0} o WHERE o.id > 1",
            TimeTravel("version", "3"),
        ),
        (
            "SELECT * FROM orders FOR VERSION AS OF 'audit' AS o",
            "SELECT * FROM {t0} AS o",
            TimeTravel("version", "'audit'"),
        ),
        (
            "SELECT * FROM orders TIMESTAMP AS OF /* noon */ '2026-01-31 12:00' -- then\nWHERE id = 1",
            "SELECT * FROM {t0} AS `orders` -- then\nWHERE id = 1",
            TimeTravel("timestamp", "'2026-01-31 12:00'"),
        ),
        (
            "SELECT * FROM orders FOR SYSTEM_TIME AS OF current_timestamp() - INTERVAL 1 DAY WHERE id = 1",
            "SELECT * FROM {t0} AS `orders` WHERE id = 1",
            TimeTravel("timestamp", "current_timestamp() - INTERVAL 1 DAY"),
        ),
        (
            "SELECT * FROM orders TIMESTAMP AS OF date_sub(current_date(), 1) TABLESAMPLE (10 PERCENT)",
            "SELECT * FROM {t0} TABLESAMPLE (10 PERCENT) AS `orders`",
            TimeTravel("timestamp", "date_sub(current_date(), 1)"),
        ),
        (
            "SELECT * FROM (SELECT * FROM orders VERSION AS OF 2), c",
            "SELECT * FROM (SELECT * FROM {t0} AS `orders`), {t1} AS `c`",
            TimeTravel("version", "2"),
        ),
    ],
)
def test_the_clause_is_taken_out_with_the_name(sql: str, placed: str, moment: TimeTravel) -> None:
    found = parse_query_template(sql)
    assert found is not None
    (placeholder,) = found.time_travels
    assert found.time_travels[placeholder] == moment
    other = "t1" if placeholder == "t0" else "t0"
    swapped = found.sql.replace("{" + placeholder + "}", "{a}").replace("{" + other + "}", "{t1}")
    assert swapped.replace("{a}", "{t0}") == placed


def test_one_table_at_two_moments_is_two() -> None:
    found = parse_query_template(
        "SELECT * FROM a VERSION AS OF 1 x JOIN a VERSION AS OF 2 y JOIN a z ON true"
    )
    assert found is not None
    assert list(found.tables.values()) == [("a",)] * 3
    assert sorted(moment.sql for moment in found.time_travels.values()) == ["1", "2"]


def test_an_alias_that_is_called_version_is_an_alias() -> None:
    found = parse_query_template("SELECT version.id FROM orders version")
    assert found is not None
    assert (found.sql, found.time_travels) == ("SELECT version.id FROM {t0} version", {})


def test_a_moment_that_another_table_would_have_to_tell_is_refused() -> None:
    with pytest.raises(SourceFailed, match="cannot come from a query"):
        parse_query_template("SELECT * FROM a TIMESTAMP AS OF (SELECT max(at) FROM b)")
