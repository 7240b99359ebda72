"""A query that names a table as of a version or a time: the clause goes with the name, and nothing else."""

from __future__ import annotations

import pytest

from ematix_flow.backends.query_tables import Moment, place_tables
from ematix_flow.errors import SourceFailed


@pytest.mark.parametrize(
    ("sql", "placed", "moment"),
    [
        (
            "SELECT * FROM sales.orders VERSION AS OF 3",
            "SELECT * FROM {t0} AS `orders`",
            Moment("version", "3"),
        ),
        (
            "SELECT o.id FROM orders version as of 3 o WHERE o.id > 1",
            "SELECT o.id FROM {t0} o WHERE o.id > 1",
            Moment("version", "3"),
        ),
        (
            "SELECT * FROM orders FOR VERSION AS OF 'audit' AS o",
            "SELECT * FROM {t0} AS o",
            Moment("version", "'audit'"),
        ),
        (
            "SELECT * FROM orders TIMESTAMP AS OF /* noon */ '2026-01-31 12:00' -- then\nWHERE id = 1",
            "SELECT * FROM {t0} AS `orders` -- then\nWHERE id = 1",
            Moment("timestamp", "'2026-01-31 12:00'"),
        ),
        (
            "SELECT * FROM orders FOR SYSTEM_TIME AS OF current_timestamp() - INTERVAL 1 DAY WHERE id = 1",
            "SELECT * FROM {t0} AS `orders` WHERE id = 1",
            Moment("timestamp", "current_timestamp() - INTERVAL 1 DAY"),
        ),
        (
            "SELECT * FROM orders TIMESTAMP AS OF date_sub(current_date(), 1) TABLESAMPLE (10 PERCENT)",
            "SELECT * FROM {t0} TABLESAMPLE (10 PERCENT) AS `orders`",
            Moment("timestamp", "date_sub(current_date(), 1)"),
        ),
        (
            "SELECT * FROM (SELECT * FROM orders VERSION AS OF 2), c",
            "SELECT * FROM (SELECT * FROM {t0} AS `orders`), {t1} AS `c`",
            Moment("version", "2"),
        ),
    ],
)
def test_the_clause_is_taken_out_with_the_name(sql: str, placed: str, moment: Moment) -> None:
    found = place_tables(sql)
    assert found is not None
    (placeholder,) = found.moments
    assert found.moments[placeholder] == moment
    other = "t1" if placeholder == "t0" else "t0"
    swapped = found.sql.replace("{" + placeholder + "}", "{a}").replace("{" + other + "}", "{t1}")
    assert swapped.replace("{a}", "{t0}") == placed


def test_one_table_at_two_moments_is_two() -> None:
    found = place_tables("SELECT * FROM a VERSION AS OF 1 x JOIN a VERSION AS OF 2 y JOIN a z ON true")
    assert found is not None
    assert list(found.tables.values()) == [("a",)] * 3
    assert sorted(moment.sql for moment in found.moments.values()) == ["1", "2"]


def test_an_alias_that_is_called_version_is_an_alias() -> None:
    found = place_tables("SELECT version.id FROM orders version")
    assert found is not None
    assert (found.sql, found.moments) == ("SELECT version.id FROM {t0} version", {})


def test_a_moment_that_another_table_would_have_to_tell_is_refused() -> None:
    with pytest.raises(SourceFailed, match="cannot be asked of a table"):
        place_tables("SELECT * FROM a TIMESTAMP AS OF (SELECT max(at) FROM b)")
