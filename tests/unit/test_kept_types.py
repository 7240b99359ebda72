"""`make check` keeps what mypy found for the next checkout, one archive for each Python."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
VERSION = ".".join(map(str, sys.version_info[:3]))
MINOR = ".".join(map(str, sys.version_info[:2]))


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """The folder of archives, with old ones; next to it a checkout whose mypy is a script."""
    (tmp_path / "lock").mkdir()
    shutil.copy(ROOT / "lock" / "dev.txt", tmp_path / "lock")
    makefile = (ROOT / "Makefile").read_text()
    (tmp_path / "Makefile").write_text(f"{makefile}\n.PHONY: types\ntypes:\n\t@$(TYPES)\n")
    script(tmp_path / ".venv" / "bin" / "mypy", "mkdir .mypy_cache")
    folder = tmp_path / "a cache" / "ematix-flow"
    folder.mkdir(parents=True)
    for name in (
        f"mypy-{VERSION}-1.tar",
        f"mypy-{MINOR}.0-1.tar",
        f"mypy-{VERSION}-1.tar.99",
        "mypy-2.7.1-1.tar",
    ):
        (folder / name).touch()
    return folder


def script(path: Path, line: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)


def check_types(kept: Path, **variables: str) -> int:
    home = kept.parents[1]
    own = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    environment = {**own, "XDG_CACHE_HOME": str(kept.parent), **variables}
    made = ["make", "types", f"PYTHON={sys.executable}"]
    return subprocess.run(made, cwd=home, env=environment, capture_output=True, timeout=60).returncode


def test_only_the_newest_archive_of_a_python_stays(kept: Path) -> None:
    assert check_types(kept) == 0
    found = sorted(path.name for path in kept.iterdir())
    assert found[0] == "mypy-2.7.1-1.tar"
    assert len(found) == 2
    assert found[1].startswith(f"mypy-{VERSION}-")
    assert (kept / found[1]).stat().st_size > 0
    assert sorted(path.name for path in kept.parents[1].iterdir() if path.name.startswith("a")) == ["a cache"]


def test_an_interrupted_archive_leaves_no_file(kept: Path) -> None:
    before = sorted(kept.iterdir())
    script(kept.parents[1] / "bin" / "tar", 'echo half > "$2"; kill -TERM $PPID')
    check_types(kept, PATH=f"{kept.parents[1] / 'bin'}:{os.environ['PATH']}")
    assert sorted(kept.iterdir()) == before
