"""What the policy makes of a difference between the declared table and the live one."""

from __future__ import annotations

import pytest

from ematix_flow.backends.base import DiffLine, TableChange, TablePlan
from ematix_flow.errors import SchemaMismatch
from ematix_flow.plan.drift import judge_drift
from ematix_flow.spec.tables import ColumnSpec, TableSpec
from ematix_flow.spec.types import DataType

TABLE = TableSpec("shop", "orders", (ColumnSpec("id", DataType("big_int")),))
CREATED = TablePlan((TableChange("create_table", "shop.orders", "CREATE"),))
ADDS = TablePlan(
    (TableChange("add_column", "shop.orders.note", "ALTER"),),
    diff=(DiffLine("+", "note", now="TEXT"),),
    blockers=("column 'note' is declared but not in the table",),
)
RELAXES = TablePlan(
    (TableChange("relax_null", "shop.orders.note", "ALTER"),),
    diff=(DiffLine("~", "note", "not null", "nullable"),),
)
REFUSED = TablePlan((), ("'n' is bigint, declared as Integer",), (DiffLine("!", "n", "bigint"),))
LOSSY = TablePlan((), ("'n' is date",), (DiffLine("!", "n", "date"),), ("'n' is date",))
HISTORY = TablePlan(
    (TableChange("change_key", "shop.orders", "ALTER"),),
    diff=(DiffLine("~", "primary key", "(id)", "(id, valid_from)"),),
    blockers=("keeps no versions yet",),
    converts_to_scd2=True,
)


@pytest.mark.parametrize("policy", ["error", "warn", "evolve"])
def test_a_table_that_is_not_there_or_fits_is_no_drift(policy: str) -> None:
    for found in (CREATED, TablePlan(diff=(DiffLine("=", "more", "text, not declared"),))):
        assert judge_drift(policy, TABLE, found, None) == (found, ())


@pytest.mark.parametrize("found", [ADDS, RELAXES, HISTORY])
def test_evolve_makes_the_changes(found: TablePlan) -> None:
    assert judge_drift("evolve", TABLE, found, None) == (found, ())


@pytest.mark.parametrize("found", [ADDS, RELAXES, REFUSED, LOSSY, HISTORY])
def test_error_stops_and_shows_the_difference(found: TablePlan) -> None:
    with pytest.raises(SchemaMismatch, match="differs from its declaration") as caught:
        judge_drift("error", TABLE, found, None)
    assert all(str(line) in caught.value.what for line in found.diff)
    if found is not REFUSED and found is not LOSSY:
        assert "on_drift='evolve'" in str(caught.value.next_step)


@pytest.mark.parametrize("found", [RELAXES, REFUSED])
def test_warn_changes_nothing_and_loads_what_stays_exact(found: TablePlan) -> None:
    plan, (warning,) = judge_drift("warn", TABLE, found, None)
    assert plan.changes == ()
    assert "shop.orders differs" in warning


@pytest.mark.parametrize("found", [ADDS, LOSSY])
def test_warn_refuses_what_no_load_could_do_exactly(found: TablePlan) -> None:
    with pytest.raises(SchemaMismatch):
        judge_drift("warn", TABLE, found, None)


def test_rows_become_versions_under_every_policy_but_error() -> None:
    plan, (warning,) = judge_drift("warn", TABLE, HISTORY, None)
    assert plan == HISTORY
    assert "becomes a table of versions" in warning


@pytest.mark.parametrize("policy", ["warn", "evolve"])
def test_drift_that_no_change_fixes_stops_an_evolving_load_too(policy: str) -> None:
    both = TablePlan(ADDS.changes, REFUSED.differences, ADDS.diff + REFUSED.diff, ADDS.blockers)
    with pytest.raises(SchemaMismatch, match="differs from its declaration"):
        judge_drift(policy, TABLE, both, None)
