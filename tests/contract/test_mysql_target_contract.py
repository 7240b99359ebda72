"""MySQL and MariaDB against the contract of targets, and what they cannot hold."""

from __future__ import annotations

from typing import Any

import pytest

from ematix_flow import MySQLConnection
from ematix_flow.backends.base import Backend, BatchTarget
from ematix_flow.backends.registry import open_backend
from ematix_flow.errors import SchemaMismatch
from ematix_flow.spec.tables import ColumnSpec, TableSpec
from ematix_flow.spec.types import DataType
from ematix_flow.testing.contract_merge import MergeContract
from ematix_flow.testing.contract_scd2 import Scd2Contract
from ematix_flow.testing.loads import prepare
from ematix_flow.testing.samples import HOSTILE_NAMES
from tests.contract.chosen import IN_EVERY_RUN
from tests.reading import read_table


class Family(MergeContract, Scd2Contract):
    # never: no name of MySQL's holds a character beyond the first 65,536
    never_named = tuple(name for name in HOSTILE_NAMES if name.startswith("emoji"))

    def read_rows(self, backend: Backend, table: TableSpec) -> list[dict[str, Any]]:
        return read_table(backend, table)

    @pytest.mark.parametrize("name", ["emoji \U0001f600", "x" * 65, "ends with a space "])
    def test_a_name_that_the_server_cannot_keep_is_refused_before_anything_is_done(
        self, target: BatchTarget, name: str
    ) -> None:
        table = TableSpec("contract", "t", (ColumnSpec(name, DataType("text"), nullable=True),))
        with pytest.raises(SchemaMismatch, match="MySQL"):
            prepare(target, table)

    def test_columns_that_differ_only_in_case_are_refused(self, target: BatchTarget) -> None:
        columns = tuple(ColumnSpec(name, DataType("text"), nullable=True) for name in ("Name", "name"))
        with pytest.raises(SchemaMismatch, match="differ only in case"):
            prepare(target, TableSpec("contract", "t", columns))


@pytest.mark.sampled(1, of=3)
class TestMariaDB(Family):
    """The strategies are held whole on SQLite and Postgres; here a third, and what each target must show."""

    in_every_run = IN_EVERY_RUN

    @pytest.fixture
    def backend(self, mariadb_database: str) -> Backend:
        return open_backend(MySQLConnection(name="target", url=mariadb_database))


class TestMySQL(Family):
    """The statements are MariaDB's; every run holds what the two may differ in."""

    in_every_run = IN_EVERY_RUN

    @pytest.fixture
    def backend(self, mysql_database: str) -> Backend:
        return open_backend(MySQLConnection(name="target", url=mysql_database))
