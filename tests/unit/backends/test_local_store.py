"""A folder as a store, while other processes change its files."""

from __future__ import annotations

from pathlib import Path

import pytest

from ematix_flow.backends.stores.local_store import LocalStore


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    for path in ("t/1", "t/2", "t/_delta_log/0", "t/day=1/3", "t/day=1/_delta_log/4", "t/_ematix_flow/5"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("text")
    return LocalStore(str(tmp_path))


def test_a_file_that_vanishes_while_files_are_listed_is_left_out(store: LocalStore, tmp_path: Path) -> None:
    listed = store.files_below("t")
    first, _ = next(listed)
    gone = ({"1", "2"} - {first}).pop()
    (tmp_path / "t" / gone).unlink()
    (tmp_path / "t/day=1/3").unlink()
    assert sorted(path for path, _ in listed) == ["_delta_log/0", "_ematix_flow/5", "day=1/_delta_log/4"]


@pytest.mark.parametrize("durable", [True, False])
def test_a_file_is_created_once_and_whole(store: LocalStore, tmp_path: Path, durable: bool) -> None:
    store.create("new/file", "one", durable=durable)
    with pytest.raises(FileExistsError):
        store.create("new/file", "two", durable=durable)
    assert [(path.name, path.read_text()) for path in (tmp_path / "new").iterdir()] == [("file", "one")]


def test_folders_that_are_not_wanted_are_passed_over_at_the_top_only(store: LocalStore) -> None:
    found = dict(store.files_below("t", without=("_delta_log", "_ematix_flow", "1")))
    assert found == {"1": 4, "2": 4, "day=1/3": 4, "day=1/_delta_log/4": 4}
