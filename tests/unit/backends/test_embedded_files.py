"""The path of an embedded database, and the files next to it."""

from __future__ import annotations

import datetime as dt
import os
import uuid
from pathlib import Path

import duckdb
import pytest

from ematix_flow.backends.base import Load, LoadPlan
from ematix_flow.backends.duckdb.split import DuckDBSplit
from ematix_flow.backends.embedded.database_file import DatabaseFile
from ematix_flow.backends.embedded.staging_folders import (
    create_staging_folder,
    drop_staging_folder,
    part_file,
    sweep_staging_folders,
)
from ematix_flow.backends.registry import open_backend
from ematix_flow.errors import CannotConnect, PipelineLocked, TargetFailed, Unsupported
from ematix_flow.spec.connections import Connection, DuckDBConnection, SQLiteConnection
from ematix_flow.spec.tables import ColumnSpec, TableSpec
from ematix_flow.spec.types import DataType

TABLE = TableSpec("s", "t", (ColumnSpec("id", DataType("big_int")),))
KINDS = pytest.mark.parametrize("kind", [SQLiteConnection, DuckDBConnection])


def load(pipeline: str = "p") -> Load:
    return Load(pipeline, "wh:s.t", LoadPlan(TABLE, "append"), uuid.uuid4(), dt.datetime.now(dt.timezone.utc))


def file_at(path: Path) -> DatabaseFile:
    return DatabaseFile.of("SQLite", "wh", str(path))


def test_a_relative_path_counts_from_the_folder_of_the_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = DatabaseFile.of("SQLite", "wh", "x.db")
    monkeypatch.chdir("/")
    assert file.path == tmp_path.resolve() / "x.db"


def test_a_task_reads_duckdb_in_a_worker_whose_working_directory_was_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone, project = tmp_path / "gone", tmp_path / "project"
    gone.mkdir()
    project.mkdir()
    (project / "orders.csv").write_text("id\n7\n")
    duckdb.connect(str(tmp_path / "x.db")).close()
    split = DuckDBSplit(
        DatabaseFile.of("DuckDB", "wh", str(tmp_path / "x.db")), "SELECT id FROM 'orders.csv'", str(project)
    )
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert [row for batch in split.read() for row in batch.to_pylist()] == [{"id": 7}]


def test_all_names_of_one_file_are_one_identity(tmp_path: Path) -> None:
    (tmp_path / "a.db").touch()
    (tmp_path / "link.db").symlink_to(tmp_path / "a.db")
    os.link(tmp_path / "a.db", tmp_path / "hard.db")
    (tmp_path / "b.db").touch()
    names = [file_at(tmp_path / n).identity() for n in ("a.db", "link.db", "hard.db")]
    assert len(set(names)) == 1
    assert file_at(tmp_path / "b.db").identity() not in names


def test_a_file_that_is_not_there_yet_has_an_identity_too(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    assert file_at(tmp_path / "new.db").identity() == file_at(tmp_path / "link" / "new.db").identity()


def test_the_two_products_are_never_the_same_database(tmp_path: Path) -> None:
    (tmp_path / "a.db").touch()
    other = DatabaseFile.of("DuckDB", "wh", str(tmp_path / "a.db"))
    assert other.identity() != file_at(tmp_path / "a.db").identity()


@KINDS
def test_a_database_in_memory_is_no_source_and_no_target(kind: type[Connection]) -> None:
    backend = open_backend(kind(name="scratch", path=":memory:"))  # type: ignore[call-arg]
    assert backend.identity() != backend.identity()
    assert "in memory" in backend.check()
    for refused in (backend.source, backend.target):
        with pytest.raises(Unsupported, match="in memory"):
            refused()


@KINDS
def test_a_missing_folder_is_named_and_nothing_is_made(kind: type[Connection], tmp_path: Path) -> None:
    backend = open_backend(kind(name="wh", path=str(tmp_path / "no" / "x.db")))  # type: ignore[call-arg]
    target = backend.target()
    assert target is not None
    for ask in (
        backend.check,
        lambda: target.inspect(TABLE),
        lambda: target.lock("p", "t", uuid.uuid4()).__enter__(),
    ):
        with pytest.raises(CannotConnect, match=r"no does not exist|folder .*/no "):
            ask()
    assert list(tmp_path.iterdir()) == []


@KINDS
def test_a_folder_in_place_of_the_file_is_named(kind: type[Connection], tmp_path: Path) -> None:
    backend = open_backend(kind(name="wh", path=str(tmp_path)))  # type: ignore[call-arg]
    with pytest.raises(CannotConnect, match="is a folder"):
        backend.check()


@KINDS
def test_looking_creates_no_database(kind: type[Connection], tmp_path: Path) -> None:
    backend = open_backend(kind(name="wh", path=str(tmp_path / "x.db")))  # type: ignore[call-arg]
    target = backend.target()
    assert target is not None
    assert "does not exist yet" in backend.check()
    assert target.inspect(TABLE) is None
    assert target.plan_table(TABLE, None).changes
    assert target.watermark("p", "t", "id") is None
    assert target.ledger("p", "t") == []
    assert list(tmp_path.iterdir()) == []


@KINDS
@pytest.mark.parametrize("parent", ["/proc", "a file"])
def test_a_place_that_takes_no_files_is_refused_before_anything(
    kind: type[Connection], parent: str, tmp_path: Path
) -> None:
    (tmp_path / "a file").touch()
    folder = Path(parent) if parent == "/proc" else tmp_path / parent
    backend = open_backend(kind(name="wh", path=str(folder / "x.db")))  # type: ignore[call-arg]
    target = backend.target()
    assert target is not None
    with pytest.raises((CannotConnect, TargetFailed), match=str(folder)), target.lock("p", "t", uuid.uuid4()):
        pass


def test_a_part_has_its_name_only_when_it_is_whole(tmp_path: Path) -> None:
    folder = create_staging_folder(file_at(tmp_path / "x.db"), load())
    with pytest.raises(KeyError), part_file(folder, "p1", ".bin") as path:
        Path(path).write_text("half")
        raise KeyError
    assert os.listdir(folder) == []
    with part_file(folder, "p1", ".bin") as path:
        Path(path).write_text("whole")
        assert os.listdir(folder) != ["p1.bin"]
    assert os.listdir(folder) == ["p1.bin"]


def test_a_task_that_outlives_its_run_does_not_bring_staging_back(tmp_path: Path) -> None:
    folder = create_staging_folder(file_at(tmp_path / "x.db"), load())
    drop_staging_folder(folder)
    with pytest.raises(TargetFailed, match="does not exist"), part_file(folder, "p1", ".bin"):
        pass
    assert not Path(folder).exists()


def test_a_sweep_takes_the_pipelines_own_leftovers_and_no_others(tmp_path: Path) -> None:
    file = file_at(tmp_path / "x.db")
    mine, again, other = (create_staging_folder(file, load(name)) for name in ("p", "p", "p_b"))
    neighbour = create_staging_folder(file_at(tmp_path / "y.db"), load("p"))
    assert sweep_staging_folders(file, "p", "wh:s.t") == sorted(Path(path).name for path in (mine, again))
    assert Path(other).exists()
    assert Path(neighbour).exists()
    assert sweep_staging_folders(file, "p", "wh:s.t") == []


@KINDS
def test_two_databases_of_one_folder_do_not_lock_each_other_out(
    tmp_path: Path, kind: type[SQLiteConnection] | type[DuckDBConnection]
) -> None:
    first, second, again = (
        open_backend(kind(name=name, path=str(tmp_path / f"{name}.db"))).target()
        for name in ("first", "second", "first")
    )
    assert first is not None and second is not None and again is not None
    with first.lock("load", "wh:s.t", uuid.uuid4()):
        with second.lock("load", "wh:s.t", uuid.uuid4()):
            pass
        with pytest.raises(PipelineLocked), again.lock("load", "wh:s.t", uuid.uuid4()):
            pass
