"""Shared by the tests of gates: databases with a source table, a declared target, and plain reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pytest

from ematix_flow import DuckDBConnection, MySQLConnection, PostgresConnection, SQLiteConnection
from ematix_flow.backends.base import LoadResult, QuarantinedRows, QuarantineFilter
from ematix_flow.backends.registry import open_backend
from ematix_flow.engine.planning.gates import plan_gate
from ematix_flow.spec.connections import Connection
from ematix_flow.spec.expectations import Expectation, ExpectationsSpec, Gate, quarantine_table
from ematix_flow.spec.tables import ColumnSpec, TableSpec
from ematix_flow.spec.types import DataType
from ematix_flow.strategies.matching import Matching
from ematix_flow.testing.loads import load_rows, new_load
from tests.contract.chosen import shared_out
from tests.reading import read_table

DATABASES = [
    "sqlite",
    pytest.param("postgres", marks=pytest.mark.postgres),
    *shared_out("duckdb", "mariadb"),
]
ORDERS = TableSpec(
    "shop",
    "orders",
    (
        ColumnSpec("id", DataType("big_int"), primary_key=True),
        ColumnSpec("amount", DataType("big_int"), nullable=True),
        ColumnSpec("email", DataType("text")),
    ),
    merge_keys=("id",),
)
MATCHING = Matching(keys=("id",), compare=("amount", "email"), update=("amount", "email"))


class GateTarget:
    """A database that tests load with a gate, through staging as tasks write it."""

    def __init__(self, connection: Connection) -> None:
        self.backend = open_backend(connection)
        target = self.backend.target()
        assert target is not None
        self.target = target

    def load(
        self,
        rules: Sequence[Expectation] | ExpectationsSpec,
        rows: Sequence[Mapping[str, Any]],
        mode: Any = "append",
        *,
        table: TableSpec = ORDERS,
        **changes: Any,
    ) -> LoadResult:
        """Plan the gate, stage the rows and apply them, with the load's own transaction changing tables."""
        if mode in ("merge", "scd2"):
            changes.setdefault("matching", MATCHING)
            by_load: Any = "versions" if mode == "scd2" else "rows"
            keeps = "events" if table.keeps == "events" else by_load
            table = TableSpec(
                table.schema, table.name, table.columns, merge_keys=table.merge_keys, keeps=keeps
            )
        else:
            table = TableSpec(table.schema, table.name, table.columns)
        planned = plan_gate(
            rules if isinstance(rules, ExpectationsSpec) else ExpectationsSpec(tuple(rules)),
            table,
            changes.get("matching", Matching()),
            self.target,
            self.backend.kind,
            None,
        )
        live = self.target.inspect(table)
        load = new_load(
            table,
            mode,
            gate=planned.gate,
            quarantine_plan=planned.quarantine_plan,
            table_plan=self.target.plan_table(table, live, changes.get("matching")),
            **changes,
        )
        return load_rows(self.target, load, [dict(row) for row in rows], change=False)

    def replay(
        self, rules: Sequence[Expectation], mode: Any = "append", *, rule: str | None = None, **changes: Any
    ) -> LoadResult:
        """Load the quarantined rows of `ORDERS` again."""
        table = ORDERS if mode == "merge" else TableSpec(ORDERS.schema, ORDERS.name, ORDERS.columns)
        matching = MATCHING if mode == "merge" else Matching()
        expectations = ExpectationsSpec(tuple(rules))
        gate = plan_gate(expectations, table, matching, self.target, self.backend.kind, None).gate
        quarantine = quarantine_table(table, None)
        gate = replace(gate or Gate(()), quarantine=quarantine)
        load = new_load(table, mode, gate=gate, matching=matching, **changes)
        return self.target.apply(load, QuarantinedRows(quarantine, QuarantineFilter(load.pipeline, rule)))

    def rows(self, table: TableSpec = ORDERS) -> list[dict[str, Any]]:
        plain = TableSpec(table.schema, table.name, table.columns)
        found = read_table(self.backend, plain)
        return sorted(found, key=lambda row: tuple((v is None, v) for v in row.values()))

    def quarantined(self, table: TableSpec = ORDERS) -> list[dict[str, Any]]:
        """The rows in quarantine, with the rule of each."""
        text = DataType("text")
        wanted = TableSpec(
            table.schema,
            f"{table.name}__quarantine",
            (
                *(ColumnSpec(c.name, c.type, nullable=True) for c in table.columns),
                ColumnSpec("_rule", text),
                ColumnSpec("_source_position", text, nullable=True),
            ),
        )
        found = read_table(self.backend, wanted)
        return sorted(found, key=lambda row: tuple((v is None, v) for v in row.values()))


def connection_of(request: pytest.FixtureRequest, name: str = "db") -> Iterator[Connection]:
    """The connection of the database that the parameter names."""
    folder: Path = request.getfixturevalue("tmp_path")
    if request.param == "postgres":
        yield PostgresConnection(name=name, url=request.getfixturevalue("pg_database"))
    elif request.param == "mariadb":
        yield MySQLConnection(name=name, url=request.getfixturevalue("mariadb_database"))
    elif request.param == "duckdb":
        path = str(folder / "target.duckdb")
        with duckdb.connect(path):  # opening a file takes long if no connection has it open
            yield DuckDBConnection(name=name, path=path)
    else:
        yield SQLiteConnection(name=name, path=str(folder / "target.db"))
