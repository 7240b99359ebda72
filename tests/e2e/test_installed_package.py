"""The wheel as a user gets it: built, installed with pip into an empty environment, and used from there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
SOURCES = REPOSITORY / "src"
# Before a test has its own home: what `make` installed is in this cache, so that nothing is fetched again
UV_CACHE = os.environ.get("UV_CACHE_DIR") or str(Path.home() / ".cache" / "uv")


@pytest.fixture
def folder() -> Iterator[Path]:
    """On the disk: uv links PySpark's half a gigabyte from its cache, which it cannot do into memory."""
    with tempfile.TemporaryDirectory(prefix="ematix-flow-installed-") as made:
        yield Path(made)


def run(folder: Path, *command: str | Path) -> str:
    """Run a command that sees neither this checkout nor the environment of the tests."""
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        [str(word) for word in command],
        cwd=folder,
        env={**env, "UV_CACHE_DIR": UV_CACHE, "NO_COLOR": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def build_wheel(folder: Path) -> Path:
    """Built from a copy: a build leaves no file in the checkout."""
    for name in ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md"):
        shutil.copy(REPOSITORY / name, folder)
    shutil.copytree(SOURCES, folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
    run(folder, sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder / "dist")
    (wheel,) = (folder / "dist").glob("*.whl")
    return wheel


def install(folder: Path, wheel: Path) -> Path:
    """The locked libraries from uv's cache, the wheel itself with pip; returns where the commands are."""
    uv = os.environ.get("UV") or shutil.which("uv") or str(REPOSITORY / ".uv" / "bin" / "uv")
    run(folder, sys.executable, "-m", "venv", folder / "env")
    programs = folder / "env" / "bin"
    locked = ["--require-hashes", "-r", REPOSITORY / "lock" / "runtime.txt"]
    built = ["--build-constraint", REPOSITORY / "lock" / "build.txt"]
    run(folder, uv, "pip", "install", "--quiet", "--python", programs / "python", *locked, *built)
    run(folder, programs / "python", "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", wheel)
    run(folder, programs / "python", "-m", "pip", "check")
    return programs


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_the_wheel_installs_into_an_empty_environment_and_its_commands_work(folder: Path) -> None:
    wheel = build_wheel(folder)
    with zipfile.ZipFile(wheel) as packed:
        names = {name for name in packed.namelist() if name.startswith("ematix_flow/")}
    sources = {path.relative_to(folder / "src").as_posix() for path in (folder / "src").rglob("*")}
    assert names == {name for name in sources if (folder / "src" / name).is_file()}

    programs = install(folder, wheel)
    where = run(folder, programs / "python", "-I", "-c", "import ematix_flow; print(ematix_flow.__file__)")
    assert where.startswith(str(folder / "env"))

    assert "shop/pipelines.py" in run(folder, programs / "flow", "init", "shop")
    loaded = run(folder / "shop", programs / "flow", "run", "--all")
    assert loaded.count("succeeded") == 2
    assert "The demo went as planned" in run(folder, programs / "flow", "demo", "--dir", "demo")
