"""How Spark gets the SQL of a stream."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ematix_flow.engine.connections import Connections
from ematix_flow.engine.planning.sql_dialects import to_spark_sql
from ematix_flow.engine.planning.stream_columns import DECLARED, suggest_sql_fix
from ematix_flow.engine.planning.stream_targets import plan_targets
from ematix_flow.errors import SchemaMismatch, SourceFailed, Unsupported
from ematix_flow.spec.streams import StreamSpec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_sql_of_another_dialect_is_put_into_sparks_words() -> None:
    assert to_spark_sql('SELECT "a" FROM source', "postgres") == "SELECT `a` FROM source"
    for dialect in (None, "spark", "datafusion"):
        assert to_spark_sql("SELECT `a`  FROM source", dialect) == "SELECT `a`  FROM source"


def test_a_second_statement_is_refused_and_not_left_out() -> None:
    with pytest.raises(Unsupported, match="one statement, and these are 2"):
        to_spark_sql("SELECT 1; SELECT 2", "duckdb")


def test_sql_that_is_none_is_refused_in_words() -> None:
    with pytest.raises(Unsupported, match="cannot be read as duckdb"):
        to_spark_sql("SELECT FROM (", "duckdb")


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("SELECT array_agg(a ORDER BY b) AS x FROM source", "cannot sort inside  ARRAY_AGG"),
        ("SELECT a FROM source FOR UPDATE", "cannot be translated from postgres"),
    ],
)
def test_what_a_translation_would_leave_out_is_refused(sql: str, reason: str) -> None:
    with pytest.raises(Unsupported, match=reason):
        to_spark_sql(sql, "postgres")


def test_a_function_without_translation_is_said_to_be_one() -> None:
    said = "[UNRESOLVED_ROUTINE] Cannot resolve routine `JSONB_AGG`."
    assert "no translation from postgres" in suggest_sql_fix(said, "postgres")
    assert suggest_sql_fix(said) == "correct transform_sql"


@pytest.mark.parametrize(
    ("said", "step"),
    [
        (
            "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column with name `idd` cannot be resolved. "
            "Did you mean one of the following? [`id`, `note`].",
            "correct transform_sql: Spark suggests `id`, `note`",
        ),
        ("[PARSE_SYNTAX_ERROR] Syntax error at or near 'FORM'.", "correct transform_sql"),
        (
            "[TABLE_OR_VIEW_NOT_FOUND] The table or view `events` cannot be found.",
            "correct transform_sql: the stream is called source in it, and lookups by their names",
        ),
    ],
)
def test_sql_that_spark_refuses_has_sparks_suggestion_as_next_step(said: str, step: str) -> None:
    def refuse(_: object) -> SparkSession:
        raise RuntimeError(said)

    spec = StreamSpec("s", (), (), transform_sql="SELECT idd FROM source")
    world = Connections(refuse, lambda error, what: SourceFailed(f"{what} failed: {error}"), lambda *_: None)
    with pytest.raises(SchemaMismatch) as refused:
        plan_targets(spec, world, (), {}, DECLARED)
    assert refused.value.what == f"transform_sql of 's' failed: {said}"
    assert refused.value.next_step == step
