"""MySQL and MariaDB against the contract of targets, and what they cannot hold."""

from __future__ import annotations

from typing import Any

import pytest

from ematix_flow import MySQLConnection
from ematix_flow.backends.base import Backend, Target
from ematix_flow.backends.registry import open_backend
from ematix_flow.errors import SchemaMismatch
from ematix_flow.spec.tables import ColumnSpec, TableSpec
from ematix_flow.spec.types import DataType
from ematix_flow.testing.contract_merge import MergeContract
from ematix_flow.testing.contract_scd2 import Scd2Contract
from ematix_flow.testing.loads import prepare
from ematix_flow.testing.samples import HOSTILE_NAMES
from tests.reading import read_table


class Family(MergeContract, Scd2Contract):
    # never: no name of MySQL's holds a character beyond the first 65,536
    never_named = tuple(name for name in HOSTILE_NAMES if name.startswith("emoji"))

    def read_rows(self, backend: Backend, table: TableSpec) -> list[dict[str, Any]]:
        return read_table(backend, table)

    @pytest.mark.parametrize("name", ["emoji \U0001f600", "x" * 65, "ends with a space "])
    def test_a_name_that_the_server_cannot_keep_is_refused_before_anything_is_done(
        self, target: Target, name: str
    ) -> None:
        table = TableSpec("contract", "t", (ColumnSpec(name, DataType("text"), nullable=True),))
        with pytest.raises(SchemaMismatch, match="MySQL"):
            prepare(target, table)

    def test_columns_that_differ_only_in_case_are_refused(self, target: Target) -> None:
        columns = tuple(ColumnSpec(name, DataType("text"), nullable=True) for name in ("Name", "name"))
        with pytest.raises(SchemaMismatch, match="ignores their case"):
            prepare(target, TableSpec("contract", "t", columns))


class TestMariaDB(Family):
    @pytest.fixture
    def backend(self, mariadb_database: str) -> Backend:
        return open_backend(MySQLConnection(name="target", url=mariadb_database))


class TestMySQL(Family):
    """The statements are MariaDB's, which every run holds to all of them; here where the two may differ."""

    in_every_run = frozenset(
        {
            "test_every_type_and_null_arrives_unchanged",
            "test_hostile_column_names_round_trip",
            'test_hostile_table_names_round_trip[quo"te]',
            "test_a_hundred_thousand_rows_in_several_parts_arrive_once_each",
            "test_a_batch_whose_key_is_in_the_ledger_is_not_applied_again",
            "test_truncate_replaces_every_row",
            "test_ties_at_the_boundary_are_neither_lost_nor_doubled_without_a_key",
            "test_a_crash_at_any_commit_point_leaves_before_or_after_and_the_ledger_agrees[truncate]",
            "test_a_second_run_of_the_same_pipeline_is_locked_out",
            "test_a_column_of_another_type_is_a_difference",
            "test_a_new_nullable_column_can_be_added",
            "test_merge_inserts_updates_and_leaves_the_rest_untouched[staged]",
            "test_merge_sees_a_change_of_every_type_to_and_from_null",
            "test_two_rows_with_one_key_are_refused_and_named[staged]",
            "test_hard_deletes_remove_what_the_source_lacks[staged]",
            "test_a_late_event_splits_the_version_it_falls_into[staged]",
            "test_a_merge_that_crashes_at_any_commit_point_leaves_before_or_after[soft]",
        }
    )

    @pytest.fixture
    def backend(self, mysql_database: str) -> Backend:
        return open_backend(MySQLConnection(name="target", url=mysql_database))
