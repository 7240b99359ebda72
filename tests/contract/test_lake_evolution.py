"""Changes of lake tables that are there: what each format can, and what it refuses in the plan."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ematix_flow.backends.base import Backend, TablePlan
from ematix_flow.backends.lake.target import LakeTarget
from ematix_flow.errors import FlowError
from ematix_flow.spec.tables import ColumnSpec, TableSpec
from ematix_flow.spec.types import DataType
from ematix_flow.testing.loads import load_rows, new_load
from ematix_flow.testing.matched_loads import table_of
from tests.lakes import lake_backend, lake_target

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BIG, SMALL = DataType("big_int"), DataType("small_int")


@pytest.fixture(params=["delta", "iceberg"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
    return lake_backend(request.param, tmp_path / "lake")


@pytest.fixture
def target(backend: Backend, spark: SparkSession) -> LakeTarget:
    return lake_target(backend, spark)


def planned(target: LakeTarget, table: TableSpec) -> TablePlan:
    return target.plan_table(table, target.inspect(table))


def test_a_column_without_nulls_is_added_to_an_empty_table_and_loads_go_on(target: LakeTarget) -> None:
    first = table_of("grown", {"id": BIG}, {})
    load_rows(target, new_load(first), [])
    grown = replace(first, columns=(*first.columns, ColumnSpec("added", BIG)))
    assert [change.action for change in planned(target, grown).changes] == ["add_column"]
    load_rows(target, new_load(grown), [{"id": 1, "added": 2}])
    plan = planned(target, grown)
    assert (plan.changes, plan.differences) == ((), ())
    load_rows(target, new_load(grown), [{"id": 2, "added": 3}])
    with pytest.raises(FlowError, match="added"):
        load_rows(target, new_load(grown), [{"id": 3, "added": None}])


@pytest.mark.parametrize("backend", ["delta"], indirect=True)
def test_whole_numbers_become_decimals_of_as_many_digits_as_delta_asks_for(target: LakeTarget) -> None:
    load_rows(
        target,
        new_load(table_of("sums", {"id": BIG}, {"big": BIG, "small": SMALL})),
        [{"id": 1, "big": 2**62, "small": -7}],
    )

    def declared(big: int, small: int) -> TableSpec:
        wide = [DataType("numeric", precision=digits, scale=2) for digits in (big, small)]
        return table_of("sums", {"id": BIG}, dict(zip(("big", "small"), wide, strict=True)))

    for table, told in (
        (declared(21, 12), r"'big' from BigInt to Numeric\[21, 2\].* Declare it as Numeric\[22, 2\]"),
        (declared(22, 8), r"'small' from SmallInt to Numeric\[8, 2\].* Declare it as Numeric\[12, 2\]"),
    ):
        plan = planned(target, table)
        assert plan.changes == ()
        assert re.search(told, " ".join(plan.differences))
    wide = declared(22, 12)
    assert [change.action for change in planned(target, wide).changes] == ["widen_column"] * 2
    load_rows(target, new_load(wide), [{"id": 2, "big": 5, "small": 6}])
    plan = planned(target, wide)
    assert (plan.changes, plan.differences) == ((), ())
