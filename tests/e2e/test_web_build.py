"""The committed pages of `flow web` are the build of their sources."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from ematix_flow.web.static_files import UI_FOLDER
from tests.services import web_ui
from tests.services.npm import node
from tests.services.process import ServiceUnavailable

pytestmark = pytest.mark.node
_NOT_SOURCES = ("node_modules", "dist")


@pytest.fixture(scope="module")
def tools() -> Path:
    """The folder of the locked packages."""
    script = web_ui.find()
    if script is None:
        raise ServiceUnavailable("the tools are not installed: run  python -m tests.services install web_ui")
    return web_ui.PRIVATE / "node_modules"


def _run(tools: Path, folder: Path, script: str, *arguments: str) -> None:
    command = [node(), str(tools / script), *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def sources(tools: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources in a folder like the repository."""
    copy = tmp_path_factory.mktemp("build") / "web-ui"
    shutil.copytree(web_ui.SOURCES, copy, ignore=shutil.ignore_patterns(*_NOT_SOURCES))
    (copy / "node_modules").symlink_to(tools)
    return copy


def test_the_committed_pages_are_the_build_of_the_sources(tools: Path, sources: Path) -> None:
    _run(tools, sources, "vite/bin/vite.js", "build", "--logLevel=error")
    built = _contents(sources.parent / "src" / "ematix_flow" / "web" / "ui")
    assert built
    assert sorted(built) == sorted(_contents(UI_FOLDER)), "run  make web  and commit what it builds"
    assert built == _contents(UI_FOLDER), "run  make web  and commit what it builds"


def test_the_unit_tests_of_the_pages_pass(tools: Path, sources: Path) -> None:
    _run(tools, sources, "vitest/vitest.mjs", "run")


def _contents(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}
