"""The targets of a stream of change events that has run: which tables it may create now."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ematix_flow import CDC
from ematix_flow.api.streaming import stream_spec
from ematix_flow.engine.connections import Connections
from ematix_flow.engine.planning.stream_targets import plan_targets
from ematix_flow.engine.streams.declaration_record import LoadedTarget
from ematix_flow.engine.streams.kept_targets import KnownTargets, refuse_target_changes
from ematix_flow.errors import TargetFailed, Unsupported
from ematix_flow.spec.connections import KafkaConnection, SQLiteConnection
from ematix_flow.spec.tables import ColumnSpec
from ematix_flow.spec.types import DataType

BROKER = KafkaConnection(name="broker", bootstrap_servers="localhost:9092")
COLUMNS = (ColumnSpec("id", DataType("big_int")), ColumnSpec("email", DataType("text"), nullable=True))
TABLE = "CREATE TABLE customers (id INTEGER NOT NULL PRIMARY KEY, email TEXT)"
ANOTHER_IS_LOADED = KnownTargets({"lite:others": LoadedTarget("cdc", ("id",))})
IS_LOADED = KnownTargets({"lite:customers": LoadedTarget("cdc", ("id",))})


def no_spark(*_: Any) -> Any:
    raise AssertionError("this test has no Spark")


def refuse(file: Path, known: KnownTargets) -> None:
    lite = SQLiteConnection(name="lite", path=str(file))
    options: dict[str, Any] = {"source": BROKER, "source_query": "customers", "cdc": CDC()}
    spec = stream_spec(None, name="mirror", target=lite, target_table="customers", **options)
    connections = Connections(no_spark, no_spark, no_spark)
    plans = plan_targets(spec, connections, COLUMNS, {}, "the messages")
    refuse_target_changes(spec, connections, plans, known, lambda target: None)


def execute(file: Path, *statements: str) -> None:
    with closing(sqlite3.connect(file)) as database, database:
        for statement in statements:
            database.execute(statement)


def test_a_new_target_whose_table_was_created_by_hand_gets_its_table_of_positions(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match="lite:customers is a new target") as refused:
        refuse(tmp_path / "lite.db", ANOTHER_IS_LOADED)
    assert "create the table" in (refused.value.next_step or "")
    execute(tmp_path / "lite.db", TABLE)
    refuse(tmp_path / "lite.db", ANOTHER_IS_LOADED)


def test_a_loaded_table_does_not_go_on_without_its_positions(tmp_path: Path) -> None:
    with pytest.raises(TargetFailed, match="customers is gone, and this stream has loaded it before"):
        refuse(tmp_path / "lite.db", IS_LOADED)
    execute(tmp_path / "lite.db", TABLE)
    with pytest.raises(TargetFailed, match="customers__changes is gone, and this stream has loaded it"):
        refuse(tmp_path / "lite.db", IS_LOADED)
