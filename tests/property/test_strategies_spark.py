"""Random histories through whole pipelines, read and written by Spark tasks, against the same model."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from sqlglot import exp

from ematix_flow import DuckDBConnection, SQLiteConnection, ematix, register_connection
from ematix_flow.backends.registry import open_backend
from ematix_flow.backends.sql.target import RelationalTarget
from ematix_flow.graph.registry import Registry, use_registry
from ematix_flow.spec.tables import TableSpec
from ematix_flow.strategies.sql import column
from ematix_flow.testing.loads import load_rows, new_load
from tests.property.strategy_driving import Database
from tests.property.strategy_histories import Scenario, scenarios
from tests.property.test_strategies import SQLITE_NEVER

pytestmark = [pytest.mark.usefixtures("spark"), pytest.mark.timeout(1_800)]

NUMBERS = itertools.count()


def plannable(scenario: Scenario) -> bool:
    """Examples that need no separate clock; rows of one key are ordered by event time only."""
    matching = scenario.matching
    by_clock = matching.deletes == "soft" or matching.ttl_seconds is not None
    return not by_clock and (matching.order is None or matching.event is not None)


@settings(
    max_examples=15,
    deadline=None,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(
    scenarios(("merge", "merge", "events", "append", "truncate"), (float("nan"),), SQLITE_NEVER).filter(
        plannable
    ),
    st.sampled_from(["sqlite", "duckdb"]),
    st.sampled_from(["copy", "spark"]),
)
def test_pipelines_through_spark_give_the_models_table(
    tmp_path: Path, scenario: Scenario, kind: str, path: str
) -> None:
    number = next(NUMBERS)
    with use_registry(Registry()):
        source = _opened(SQLiteConnection(name="source", path=str(tmp_path / f"{number}.source.db")))
        made = SQLiteConnection if kind == "sqlite" else DuckDBConnection
        target = _opened(made(name="target", path=str(tmp_path / f"{number}.target.db")))
        declared = replace(scenario.narrow, keeps="rows", merge_keys=())
        rows_now = TableSpec(None, "now", tuple(replace(c, primary_key=False) for c in declared.columns))
        sql = source.dialect.render(exp.select(*[column(n) for n in declared.column_names]).from_("now"))

        @ematix.pipeline(
            target=declared,
            source_connection="source",
            target_connection="target",
            name="load",
            force_path=path,
            allow_empty=True,
            max_shrink=1.0,
            **_options(scenario),
        )
        def load() -> str:
            return sql

        model, database = scenario.model(), Database(target)
        for batch in scenario.batches:
            rows = [{k: row[k] for k in declared.column_names} for row in batch.rows]
            refill = new_load(rows_now, "truncate", max_shrink=1.0, allow_empty=True)
            load_rows(source, refill, rows)
            result = load.sync()
            assert (result.status, result.path) == ("succeeded", path)
            model.load(rows, batch.now)
            database.compare(model, "after a run")


def _options(scenario: Scenario) -> dict[str, Any]:
    matching = scenario.matching
    if not matching.keys:
        return {"mode": scenario.mode}
    given: dict[str, Any] = {
        "mode": scenario.mode,
        "keys": list(matching.keys),
        "compare_columns": list(matching.compare),
        "handle_deletes": matching.deletes,
        "event_timestamp_column": matching.event,
    }
    if scenario.mode == "merge":
        given["update_columns"] = list(matching.update)
    return given


def _opened(connection: Any) -> RelationalTarget:
    target = open_backend(register_connection(connection)).target()
    assert isinstance(target, RelationalTarget)
    return target
