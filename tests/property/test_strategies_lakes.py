"""Random histories on lake tables against the same model as the databases.

A load costs seconds here, so these are few; ``make test-long`` takes many.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from ematix_flow.backends.lake.target import LakeTarget
from ematix_flow.spec.tables import TableSpec
from tests.lakes import lake_backend, lake_target
from tests.property.strategy_driving import Database
from tests.property.strategy_histories import Polling, Scenario, pollings, scenarios

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LAKES_NEVER = ("İ",)  # Spark takes a column of this name for another one
pytestmark = [pytest.mark.slow, pytest.mark.timeout(3_600)]


def examples(count: int) -> settings:
    return settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )


class DeltaTables(Database):
    def drop(self, table: TableSpec) -> None:
        assert isinstance(self.target, LakeTarget)
        self.target.store.remove_tree(f"{table.schema}/{table.name}")


@pytest.fixture(scope="module")
def delta(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Database:
    return DeltaTables(lake_target(lake_backend("delta", tmp_path_factory.mktemp("lake")), spark))


class TestDelta:
    @examples(3)
    @given(scenarios(("merge",), (), LAKES_NEVER))
    def test_merge(self, delta: Database, scenario: Scenario) -> None:
        delta.check(scenario)

    @examples(2)
    @given(scenarios(("versions", "events"), (), LAKES_NEVER))
    def test_scd2(self, delta: Database, scenario: Scenario) -> None:
        delta.check(scenario)

    @examples(2)
    @given(pollings(("append", "keyed", "merge", "events"), (), LAKES_NEVER))
    def test_incremental_reads(self, delta: Database, polling: Polling) -> None:
        delta.poll(polling)

    @pytest.mark.long
    @examples(1_000)
    @given(scenarios(("append", "truncate", "merge", "versions", "events"), (), LAKES_NEVER))
    def test_a_thousand_histories(self, delta: Database, scenario: Scenario) -> None:
        delta.check(scenario)
