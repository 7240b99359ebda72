"""Servers from npm: a locked package in its own folder. Node itself must be there."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.services.process import ServiceUnavailable


def found_package(locked: Path, private: Path, script: str) -> Path | None:
    """The script, when exactly what is locked is installed."""
    ours, lock = private / "node_modules" / script, private / "package-lock.json"
    same = lock.exists() and lock.read_bytes() == (locked / "package-lock.json").read_bytes()
    return ours if same and ours.exists() else None


def bring_package(what: str, locked: Path, private: Path, script: str) -> Path:
    """Install what is locked."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        raise ServiceUnavailable(f"{what} needs Node 20 or later with npm on the path")
    private.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "package-lock.json"):
        shutil.copy(locked / name, private / name)
    command = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
    try:
        subprocess.run(command, check=True, cwd=private, stdout=subprocess.DEVNULL)
    except (OSError, subprocess.CalledProcessError) as problem:
        raise ServiceUnavailable(f"{what} could not be installed: {problem}") from problem
    found = found_package(locked, private, script)
    if found is None:
        raise ServiceUnavailable(f"{what} was installed into {private}, but is missing")
    return found


def node() -> str:
    program = shutil.which("node")
    if program is None:
        raise ServiceUnavailable("a server from npm needs Node on the path")
    return program
