"""``flow`` in this process: the exit code, what it printed on stdout and on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest


@dataclass(frozen=True)
class Called:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Flow = Callable[..., Called]


@pytest.fixture
def flow(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Iterator[Flow]:
    """Call a command as the shell would; modules of this test's folder are forgotten afterwards."""
    from ematix_flow.cli.main import main

    path_before, modules_before = list(sys.path), set(sys.modules)

    def call(*arguments: str) -> Called:
        capsys.readouterr()
        code = main(arguments)
        printed = capsys.readouterr()
        return Called(code, printed.out, printed.err)

    yield call
    sys.path[:] = path_before
    for name in sys.modules.keys() - modules_before:
        if str(getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


PIPELINES = '''
from ematix_flow import Annotated, BigInt, Text, ematix, pk

@ematix.table(schema="shop")
class Orders:
    order_id: Annotated[BigInt, pk()]
    note: Text | None

@ematix.pipeline(target=Orders, source_connection="shop", target_connection="warehouse",
                 schedule="0 6 * * *", timezone="Europe/Berlin")
def orders(conn):
    """New orders."""
    return "SELECT order_id, note FROM orders"

@ematix.table(schema="shop")
class Report:
    note: Annotated[Text, pk()]

@ematix.pipeline(target=Report, target_connection="warehouse", mode="truncate", depends_on=[orders])
def report(conn):
    return "SELECT DISTINCT note FROM shop.orders"
'''


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A module with two pipelines in the working directory."""
    (tmp_path / "pipelines.py").write_text(PIPELINES, encoding="utf-8")
    return tmp_path
