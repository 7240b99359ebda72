"""What every unit test gets."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ematix_flow.engine.spark import session


@pytest.fixture(autouse=True)
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """A unit test that starts Spark fails: it belongs to the other suites."""

    def refuse(*arguments: object) -> None:
        raise AssertionError("a unit test started Spark")

    monkeypatch.setattr(session, "_start", refuse)


@pytest.fixture
def flow_without(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Calls `flow` in a process that cannot import one module.

    In this process the modules that need it would have to be imported again, and then exist twice.
    """

    def call(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        lines = [
            "import sys",
            f"sys.modules[{module!r}] = None",
            "from ematix_flow.cli.main import main",
            "sys.exit(main())",
        ]
        command = [sys.executable, "-c", "\n".join(lines), *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)

    return call
