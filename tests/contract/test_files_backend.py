"""Local files in all formats against the one contract, read back by independent programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ematix_flow.backends.base import Backend, BatchTarget
from ematix_flow.backends.registry import open_backend
from ematix_flow.errors import RowRejected
from ematix_flow.spec.connections import ObjectStoreLocalConnection
from ematix_flow.spec.tables import TableSpec
from ematix_flow.testing.contract import APPLY_POINTS, TargetContract
from ematix_flow.testing.loads import load_rows, new_load
from ematix_flow.testing.samples import every_type, every_value
from tests.contract.files_reading import folder_of, read_folder


class FilesContract(TargetContract):
    format: str
    points = (*APPLY_POINTS, "files.version_written", "files.before_publish", "files.after_publish")

    @pytest.fixture
    def backend(self, tmp_path: Path) -> Backend:
        path = str(tmp_path / "lake")
        return open_backend(ObjectStoreLocalConnection(name="lake", path=path, format=self.format))

    def read_rows(self, backend: Backend, table: TableSpec) -> list[dict[str, Any]]:
        root = Path(backend.connection.path)  # type: ignore[attr-defined]
        return read_folder(folder_of(root, table), self.format, table)


class TestParquetFiles(FilesContract):
    format = "parquet"


class TestCsvFiles(FilesContract):
    format = "csv"


class TestJsonLinesFiles(FilesContract):
    format = "json_lines"


class TestOrcFiles(FilesContract):
    format = "orc"
    never_named = ("back`tick",)  # never: readers in Java end a name at a backtick

    def test_every_type_and_null_arrives_unchanged(self, backend: Backend, target: BatchTarget) -> None:
        """ORC's readers disagree on early times: such values are refused, all others arrive."""
        table = every_type()
        with pytest.raises(RowRejected, match="1582-10-15"):
            load_rows(target, new_load(table), every_value())
        early = ("a_date", "a_timestamp", "a_timestamp_tz")
        rows = [{**row, **(dict.fromkeys(early) if row["id"] < 2 else {})} for row in every_value()]
        rows[2]["a_date"] = rows[2]["a_timestamp"].date()
        assert load_rows(target, new_load(table), rows).rows.inserted == 4
        found = {row["id"]: row for row in self.read_rows(backend, table)}
        for expected in rows:
            for column, value in expected.items():
                assert found[expected["id"]][column] == value, column
