"""Python processes that a test starts."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import pytest


def compile_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Children keep what they compile, where Python is told not to: they start in a third of the time."""
    if sys.dont_write_bytecode:
        version = "{}.{}".format(*sys.version_info)
        kept = Path(tempfile.gettempdir()) / f"ematix-flow-compiled-{os.getuid()}-{version}"
        monkeypatch.setenv("PYTHONPYCACHEPREFIX", os.environ.get("PYTHONPYCACHEPREFIX") or str(kept))
        monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
