"""Airflow, Dagster and Prefect, each in a separate environment, from locked wheels. Without Spark."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.services.process import ServiceUnavailable

REPOSITORY = Path(__file__).resolve().parents[2]
PRIVATE = REPOSITORY / ".services" / "orchestrators"
NAMES = ("airflow", "dagster", "prefect")


def find() -> Path | None:
    """The folder of the environments, if each is complete and matches its lock."""
    return PRIVATE if all(_mark(name).exists() for name in NAMES) else None


def install() -> Path:
    """Make the environments that are missing. What uv has cached already is linked, not copied."""
    uv = os.environ.get("UV") or shutil.which("uv")
    for name in NAMES:
        if _mark(name).exists():
            continue
        if uv is None:
            raise ServiceUnavailable("uv is not on the path (make test installs it)")
        folder = PRIVATE / name
        shutil.rmtree(folder, ignore_errors=True)
        make = [uv, "venv", "--quiet", "--python", sys.executable, str(folder)]
        fill = [uv, "pip", "sync", "--quiet", "--python", str(folder), "--require-hashes", str(_lock(name))]
        try:
            subprocess.run(make, check=True)
            subprocess.run(fill, check=True)
        except (OSError, subprocess.CalledProcessError) as problem:
            raise ServiceUnavailable(f"{name} could not be installed: {problem}") from problem
        _mark(name).touch()
    return PRIVATE


def python_of(name: str) -> Path:
    """The Python that has this orchestrator."""
    if not _mark(name).exists():
        raise ServiceUnavailable(f"{name} is not installed: run  python -m tests.services install")
    return PRIVATE / name / "bin" / "python"


def _lock(name: str) -> Path:
    return REPOSITORY / "lock" / f"orchestrator-{name}.txt"


def _mark(name: str) -> Path:
    """Its name changes with the lock, so that a new lock is installed."""
    digest = hashlib.sha256(_lock(name).read_bytes()).hexdigest()[:12]
    return PRIVATE / name / f".ready-{digest}"
