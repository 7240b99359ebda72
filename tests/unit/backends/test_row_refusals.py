"""Which words of a database blame a row, and which texts PostgreSQL does not hold."""

from __future__ import annotations

import pyarrow as pa
import pytest

from ematix_flow.backends.mysql.failures import target_failure
from ematix_flow.backends.postgres.diagnosis import PostgresDiagnosis
from ematix_flow.backends.postgres.row_check import zero_character_check
from ematix_flow.errors import RowRejected, TargetFailed
from ematix_flow.spec.tables import ColumnSpec, TableSpec
from ematix_flow.spec.types import DataType


@pytest.mark.parametrize("state", ["22P05", "22003", "23502", "23503", "23505", "23514", "23P01", "44000"])
def test_postgres_blames_a_row_for_its_values_and_constraints(state: str) -> None:
    assert PostgresDiagnosis(state, "no").is_about_a_row


@pytest.mark.parametrize("state", ["P0001", "P0004", "38000", "54000", "54001"])
def test_postgres_blames_a_row_for_what_a_trigger_or_a_limit_refuses(state: str) -> None:
    assert PostgresDiagnosis(state, "no").is_about_a_row


@pytest.mark.parametrize(
    "state", ["", "08006", "40001", "40P01", "42501", "42P01", "42601", "53100", "53200", "57014", "57P01"]
)
def test_postgres_blames_no_row_for_the_server_the_disk_or_a_right(state: str) -> None:
    assert not PostgresDiagnosis(state, "permission denied for table events").is_about_a_row


def test_a_row_that_a_policy_refuses_is_no_missing_right() -> None:
    told = 'new row violates row-level security policy for table "events"'
    assert PostgresDiagnosis("42501", told).is_about_a_row


@pytest.mark.parametrize("number", [1048, 1062, 1264, 1366, 1406, 1452, 1526, 1644, 3140, 3157, 3819, 4025])
def test_mysql_blames_a_row_for_values_constraints_and_triggers(number: int) -> None:
    assert isinstance(target_failure(Exception(number, "no")), RowRejected)


@pytest.mark.parametrize("number", [0, 1021, 1040, 1114, 1142, 1146, 1205, 1213, 1290, 2006, 2013])
def test_mysql_blames_no_row_for_the_server_the_disk_or_a_right(number: int) -> None:
    assert isinstance(target_failure(Exception(number, "no")), TargetFailed)


@pytest.mark.parametrize(
    ("kind", "text", "held"),
    [
        ("text", "a\0b", False),
        ("text", "a\\u0000b", True),
        ("json", '"\\u0000"', True),
        ("jsonb", '"\\u0000"', False),
        ("jsonb", '{"\\u0000": 1}', False),
        ("jsonb", '"a\\\\u0000"', True),
        ("jsonb", '"a\\\\\\u0000"', False),
        ("jsonb", '["\\\\u0000", "\\u0000"]', False),
        ("jsonb", '"\\u0001"', True),
    ],
)
def test_the_character_zero_is_refused_where_postgres_has_none(kind: str, text: str, held: bool) -> None:
    check = zero_character_check(TableSpec(None, "t", (ColumnSpec("c", DataType(kind), nullable=True),)))
    assert check is not None
    batch = pa.RecordBatch.from_pydict({"c": ["a", None, text]})
    if held:
        check(batch)
    else:
        with pytest.raises(RowRejected, match="character zero"):
            check(batch)
