"""Which commit of the project ran, read without git."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ematix_flow._version import __version__
from ematix_flow.config.code_version import code_version


def git(folder: Path, *arguments: str) -> str:
    own = ["-c", "user.name=x", "-c", "user.email=x@y", "-c", "commit.gpgsign=false"]
    command = ["git", *own, *arguments]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "repo"
    (folder / "flows").mkdir(parents=True)
    (folder / "flows" / "pipelines.py").write_text("")
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "first")
    return folder


def test_the_commit_of_the_project_is_known(project: Path) -> None:
    file = str(project / "flows" / "pipelines.py")
    assert code_version(file) == f"{__version__}, git {git(project, 'rev-parse', 'HEAD')[:12]}"
    git(project, "commit", "-q", "--allow-empty", "-m", "second")
    second = f"{__version__}, git {git(project, 'rev-parse', 'HEAD')[:12]}"
    assert code_version(file) == second
    git(project, "pack-refs", "--all")
    assert code_version(file) == second
    git(project, "checkout", "-q", "--detach", "HEAD~1")
    assert code_version(file) == f"{__version__}, git {git(project, 'rev-parse', 'HEAD')[:12]}"


def test_a_linked_work_tree_has_its_own_commit(project: Path, tmp_path: Path) -> None:
    git(project, "worktree", "add", "-q", str(tmp_path / "other"), "-b", "other")
    git(tmp_path / "other", "commit", "-q", "--allow-empty", "-m", "there")
    commit = git(tmp_path / "other", "rev-parse", "HEAD")
    assert code_version(str(tmp_path / "other" / "flows" / "pipelines.py")).endswith(f"git {commit[:12]}")


def test_without_a_repository_it_is_the_version_alone(tmp_path: Path) -> None:
    assert code_version(str(tmp_path / "pipelines.py")) == __version__
    assert code_version(None) == __version__
    (tmp_path / ".git").mkdir()
    assert code_version(str(tmp_path / "pipelines.py")) == __version__
