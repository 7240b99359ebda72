"""Delta tables as folders: none is inside another, and none is created among other files."""

from __future__ import annotations

from pathlib import Path

import pytest

from ematix_flow.backends.delta.table_format import DeltaFormat
from ematix_flow.backends.stores import table_folders
from ematix_flow.backends.stores.local_store import LocalStore
from ematix_flow.errors import PlanError
from ematix_flow.spec.tables import ColumnSpec, TableSpec
from ematix_flow.spec.types import DataType


def table(schema: str, name: str) -> TableSpec:
    return TableSpec(schema, name, (ColumnSpec("id", DataType("big_int")),))


def put(root: Path, path: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).touch()


def make(root: Path, folder: str) -> None:
    put(root, f"{folder}/_delta_log/{0:020d}.json")


@pytest.fixture
def delta(tmp_path: Path) -> DeltaFormat:
    return DeltaFormat(LocalStore(str(tmp_path)))


@pytest.mark.parametrize("within", ["a/b/c", "a/b/c/d", "a/b/c/d/e"])
def test_a_table_is_not_made_around_another_however_deep_that_lies(
    delta: DeltaFormat, tmp_path: Path, within: str
) -> None:
    make(tmp_path, within)
    put(tmp_path, f"{within}/part-0.parquet")
    with pytest.raises(PlanError, match=f"'a/b' and '{within}' would be one inside the other"):
        delta.require_separate(table("a", "b"))
    delta.require_separate(table("a", "bb"))


@pytest.mark.parametrize("file", ["x.parquet", "2024/x.parquet", "2024/01/x.csv", "day=1/x.parquet"])
def test_a_table_is_not_made_where_other_files_lie_however_deep(
    delta: DeltaFormat, tmp_path: Path, file: str
) -> None:
    put(tmp_path, f"a/b/{file}")
    with pytest.raises(
        PlanError, match=f"is not a Delta table and contains '{file.partition('/x.parquet')[0]}"
    ):
        delta.require_separate(table("a", "b"))


def test_what_is_hidden_or_empty_is_in_no_ones_way(delta: DeltaFormat, tmp_path: Path) -> None:
    put(tmp_path, "a/b/_ematix_flow/1.json")
    put(tmp_path, "a/b/c/.hidden")
    (tmp_path / "a/b/c/empty").mkdir()
    delta.require_separate(table("a", "b"))


def test_the_own_folders_of_a_table_are_not_walked(delta: DeltaFormat, tmp_path: Path) -> None:
    make(tmp_path, "a/b")
    put(tmp_path, "a/b/day=1/hour=1/x.parquet")
    delta.require_separate(table("a", "b"))
    with pytest.raises(PlanError, match="'a/b/c' and 'a/b' would be one inside the other"):
        delta.require_separate(table("a", "b/c"))
    make(tmp_path, "a/b/c")
    delta.require_separate(table("a", "b"))  # found before: a later table is refused instead, as above
    with pytest.raises(PlanError, match="'a/b' and 'a/b/c' would be one inside the other"):
        DeltaFormat(LocalStore(str(tmp_path))).require_separate(table("a", "b"))


def test_folders_without_end_are_refused(
    delta: DeltaFormat, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_folders, "_WALKED", 5)
    for name in "123456":
        (tmp_path / "a/b" / name).mkdir(parents=True)
    with pytest.raises(PlanError, match="contains more than 5 folders, and is not a table"):
        delta.require_separate(table("a", "b"))
