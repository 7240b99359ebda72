"""How the SQL of a stream comes to Spark."""

from __future__ import annotations

import pytest

from ematix_flow.errors import Unsupported
from ematix_flow.plan.streams import spark_text


def test_sql_of_another_dialect_is_put_into_sparks_words() -> None:
    assert spark_text('SELECT "a" FROM source', "postgres") == "SELECT `a` FROM source"
    for dialect in (None, "spark", "datafusion"):
        assert spark_text("SELECT `a`  FROM source", dialect) == "SELECT `a`  FROM source"


def test_a_second_statement_is_refused_and_not_left_out() -> None:
    with pytest.raises(Unsupported, match="one statement, and these are 2"):
        spark_text("SELECT 1; SELECT 2", "duckdb")


def test_sql_that_is_none_is_refused_in_words() -> None:
    with pytest.raises(Unsupported, match="cannot be read as duckdb"):
        spark_text("SELECT FROM (", "duckdb")
