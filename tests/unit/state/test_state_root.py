"""Where state is stored on this machine."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from ematix_flow.errors import ConfigError
from ematix_flow.state.state_root import private_directory, state_root


def test_the_state_root_is_in_the_home_folder_by_default(tmp_path: Path) -> None:
    assert state_root({"HOME": str(tmp_path)}) == tmp_path / ".ematix-flow"


def test_the_environment_moves_the_state_root(tmp_path: Path) -> None:
    assert state_root({"EMATIX_FLOW_STATE": str(tmp_path / "x"), "HOME": "/nowhere"}) == tmp_path / "x"
    assert state_root({"EMATIX_FLOW_STATE": "~/x", "HOME": str(tmp_path)}) == tmp_path / "x"
    assert state_root({"EMATIX_FLOW_STATE": "", "HOME": str(tmp_path)}) == tmp_path / ".ematix-flow"


def test_a_relative_state_root_does_not_follow_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    root = state_root({"EMATIX_FLOW_STATE": "here"})
    monkeypatch.chdir("/")
    assert root == tmp_path / "here"


def test_asking_for_the_state_root_creates_nothing(tmp_path: Path) -> None:
    assert not state_root({"HOME": str(tmp_path)}).exists()


def test_a_new_folder_is_for_this_user_alone(tmp_path: Path) -> None:
    made = private_directory(tmp_path / "a" / "b")
    assert stat.S_IMODE(made.stat().st_mode) == 0o700


def test_a_folder_that_exists_keeps_its_mode(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o775)
    assert stat.S_IMODE(private_directory(shared).stat().st_mode) == 0o775


def test_a_folder_that_cannot_be_made_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot make the folder") as caught:
        private_directory(tmp_path / "file" / "sub")
    assert "EMATIX_FLOW_STATE" in str(caught.value.next_step)
