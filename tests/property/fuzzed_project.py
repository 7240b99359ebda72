"""A small project made of generated parts, and one call of ``flow`` in it, in this process."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import shutil
import sqlite3
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis.internal.conjecture import providers

from ematix_flow.cli.main import main
from ematix_flow.cli.options import wants_json
from ematix_flow.graph.registry import Registry, use_registry

CANARY = "canary/8-Ziggy:Star"
_numbers = itertools.count()
# what a person may meet; 130 would be an interrupt
EXIT_CODES = (0, 1, 2, 3, 4, 5)


@pytest.fixture(autouse=True)
def seed_and_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """For the modules that import it: a secret to look for, and cases that depend on the seed alone.

    Hypothesis would draw from the constants of all modules that this process has imported by now, which are
    others in every run.
    """
    monkeypatch.setenv("LOADED_BY", CANARY)
    monkeypatch.setattr(providers, "_get_local_constants", providers.Constants)
    providers.CONSTANTS_CACHE.cache.clear()


@dataclass(frozen=True)
class Called:
    arguments: Sequence[str]
    code: int
    out: str
    err: str
    rows: list[tuple[Any, ...]] | None

    def __str__(self) -> str:
        return f"flow {' '.join(self.arguments)}\nexit {self.code}\n{self.out}\n{self.err}"


@contextlib.contextmanager
def new_folder(base: Path) -> Iterator[Path]:
    """A new working directory; modules that are imported from it are forgotten afterwards."""
    folder = base / f"project{next(_numbers)}"
    folder.mkdir()
    before, path = Path.cwd(), list(sys.path)
    os.chdir(folder)
    try:
        yield folder
    finally:
        os.chdir(before)
        sys.path[:] = path
        for name, module in list(sys.modules.items()):
            if str(getattr(module, "__file__", None) or "").startswith(str(folder)):
                del sys.modules[name]
        shutil.rmtree(folder, ignore_errors=True)


def call_flow(
    base: Path,
    arguments: Sequence[str],
    files: Mapping[str, str | bytes],
    source: Sequence[tuple[Any, ...]] = (),
    read: str | None = None,
) -> Called:
    """Write the files and a source table, call the command, and read a table that it may have written."""
    with new_folder(base) as folder:
        for name, content in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(
                content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass")
            )
        with contextlib.closing(sqlite3.connect(folder / "shop.db")) as database, database:
            database.execute("CREATE TABLE raw (a INTEGER, b TEXT)")
            database.executemany("INSERT INTO raw VALUES (?, ?)", source)
        out, err = io.StringIO(), io.StringIO()
        with (
            use_registry(Registry()),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("default")
            code = main(list(arguments))
        rows = _rows(folder / "shop.db", read) if read else None
    return Called(arguments, code, out.getvalue(), err.getvalue(), rows)


def _rows(database: Path, table: str) -> list[tuple[Any, ...]] | None:
    with contextlib.closing(sqlite3.connect(database)) as opened:
        quoted = table.replace('"', '""')
        try:
            return opened.execute(f'SELECT * FROM "{quoted}"').fetchall()
        except sqlite3.OperationalError:
            return None


def require_a_clear_end(called: Called) -> None:
    """The command succeeded, or an error names what, where and what next, without traceback and secret."""
    said = f"{called.out}\n{called.err}"
    assert CANARY not in said, called
    assert "--debug" in called.arguments or "Traceback (most recent" not in said, called
    assert "this is a bug in flow" not in said and "error: unexpected " not in called.err, called
    assert called.code in EXIT_CODES, called
    if called.code in (0, 3):
        return
    for error in _errors(called):
        assert error["what"].strip(), called
        assert error["next"], called
        placeless = ["UsageError", "UnknownName", "CannotConnect", "PipelineLocked"]
        if called.arguments[:2] == ["connections", "check"]:  # it was named on the command line
            placeless.append("UnknownConnection")
        assert error["where"] or error["type"] in placeless, called
        assert error["exit_code"] in (called.code, 1, 2, 5), called


def _errors(called: Called) -> list[dict[str, Any]]:
    """The errors of the JSON document; of text, their parts."""
    if wants_json(called.arguments):
        document = json.loads(called.out)
        found = [document] if isinstance(document, dict) else document
        errors = [each["error"] for each in found if isinstance(each, dict) and each.get("error")]
        assert errors, called
        return errors
    if any(line.startswith('{"ts"') for line in called.err.splitlines()):
        lines = [json.loads(line) for line in called.err.splitlines()]
        errors = [line["error"] for line in lines if line.get("error")]
        assert errors, called
        return errors
    blocks = called.err.split("error: ")[1:] or called.err.split("error in ")[1:]
    assert blocks, called
    return [
        {
            "type": "UsageError" if "  where:" not in block else "",
            "what": block.partition("\n")[0],
            "where": "  where:" in block,
            "next": "  next:" in block,
            "exit_code": called.code,
        }
        for block in blocks
    ]
