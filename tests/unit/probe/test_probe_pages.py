"""The page on probes names every assertion, source, command, option and setting that there is."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from ematix_probe import pytest_plugin, source
from ematix_probe.cli.commands import run
from ematix_probe.tester import ColumnTester, Tester
from tests.unit.probe.conftest import Call

PAGE = (Path(__file__).resolve().parents[3] / "docs/reference/probes.md").read_text(encoding="utf-8")


def public(kind: type) -> list[str]:
    return [name for name in vars(kind) if not name.startswith("_")]


@pytest.mark.parametrize("kind", [Tester, ColumnTester])
def test_every_assertion_is_named(kind: type) -> None:
    methods = set(public(kind)) - {"add", "assertions", "column"}
    assert {name for name in methods if f".{name}(" not in PAGE and f"`{name}`" not in PAGE} == set()


def test_every_source_is_named() -> None:
    assert {name for name in source.__all__ if f"`source.{name}(" not in PAGE} == set()


def test_every_command_and_option_is_named(ematix_probe: Call) -> None:
    for group in ((), ("runs",)):
        lines = (
            ematix_probe(*group, "--help").out.partition("Commands:")[2].partition("Options:")[0].splitlines()
        )
        commands = [line.split()[0] for line in lines if line.startswith("  ") and line[2] != " "]
        assert {
            name
            for name in commands
            if name != "runs" and f"ematix-probe {' '.join((*group, name))}" not in PAGE
        } == set()
    options = set(inspect.signature(run.run).parameters) - {"paths", "output", "json_file"}
    assert {name for name in options if f"--{name.replace('_', '-')}" not in PAGE} == set()


def test_every_setting_of_pytest_is_named() -> None:
    class Recorder:
        def __init__(self) -> None:
            self.names: list[str] = []

        def getgroup(self, *_: str) -> Recorder:
            return self

        def addoption(self, name: str, *_: object, **__: object) -> None:
            self.names.append(name)

        addini = addoption

    recorder = Recorder()
    pytest_plugin.pytest_addoption(recorder)  # type: ignore[arg-type]
    assert len(recorder.names) == 6
    assert {name for name in recorder.names if name not in PAGE} == set()
