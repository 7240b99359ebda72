"""``ematix-probe`` in this process, and a folder with a shop's database and probes of it."""

from __future__ import annotations

import json
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
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


Call = Callable[..., Called]


@pytest.fixture
def ematix_probe(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Iterator[Call]:
    """Call a command as the shell would; modules of this test's folder are forgotten afterwards."""
    from ematix_probe.cli.main import main

    path_before = list(sys.path)

    def call(*arguments: object) -> Called:
        capsys.readouterr()
        code = main([str(each) for each in arguments])
        printed = capsys.readouterr()
        return Called(code, printed.out, printed.err)

    yield call
    sys.path[:] = path_before
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


PROBES = '''
from ematix_probe import probe, source

shop = source.sqlite("shop.db")


@probe.data(source=shop, table="customers")
def customers(t):
    """Who buys."""
    t.column("id").not_null().unique()
    t.row_count(at_least=1)


@probe.data(source=shop, table="orders")
def orders(t):
    t.column("amount").between(0, 100)


@probe.data(source=shop, table="orders")
def orders_warning(t):
    t.column("amount").between(0, 100, severity="warn")
'''


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """The working directory: shop.db, and probes of which one passes, one fails and one warns."""
    with closing(sqlite3.connect("shop.db")) as database:
        database.executescript(
            "CREATE TABLE customers (id INTEGER PRIMARY KEY, email TEXT);"
            "INSERT INTO customers VALUES (1, 'ada@a.org'), (2, 'bob@b.org');"
            "CREATE TABLE orders (id INTEGER PRIMARY KEY, amount REAL);"
            "INSERT INTO orders VALUES (1, 20), (2, 300), (3, -1);"
        )
    (tmp_path / "checks.py").write_text(PROBES, encoding="utf-8")
    return tmp_path
