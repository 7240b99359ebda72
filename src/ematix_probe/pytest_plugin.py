"""The pytest plugin: each assertion of a probe in a test module is a test, and the probe runs once for all.

A probe takes part when it is a name of a test module, declared there or imported. This module imports
nothing but pytest: it is loaded in every run of pytest in the environment.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from ematix_probe.pytest_runs import ProbeRuns

_RUNS: pytest.StashKey[ProbeRuns] = pytest.StashKey()
_SHARED: pytest.StashKey[Path] = pytest.StashKey()  # of the process that starts xdist's workers
_FOLDER = "ematix_probe_folder"  # in the input of xdist's workers
_LONGEST_NAME = 160


class ProbeWarning(UserWarning):
    """An assertion with severity="warn" does not hold, or a run could not be recorded."""


class AssertionDoesNotHold(Exception):
    """What a test shows: the message of the assertion and its samples."""


# ------------------------------------------------------------------------------------------- settings


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("ematix-probe", "data and load probes")
    group.addoption(
        "--probe-history",
        metavar="URL",
        default=None,
        help="record the runs of probes there: a path of an SQLite file, or a URL",
    )
    group.addoption(
        "--probe-allow-host",
        metavar="HOST",
        action="append",
        default=[],
        help="let load probes send to this host; may be repeated",
    )
    group.addoption(
        "--probe-fail-on-warn",
        action="store_true",
        default=False,
        help='let assertions with severity="warn" fail their tests',
    )
    parser.addini("probe_history", "where the runs of probes are recorded: a path or a URL")
    parser.addini("probe_allow_hosts", "hosts that load probes may send to", type="linelist")
    parser.addini("probe_fail_on_warn", 'whether severity="warn" fails a test', type="bool", default=False)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "probe: an assertion of a probe")
    config.addinivalue_line("markers", "load_probe: an assertion of a load probe")


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell xdist's workers the folder in which they share the results of probes. The first probe makes it."""
    config = node.config
    if _SHARED not in config.stash:
        import tempfile

        name = f"ematix-probe-pytest-{os.urandom(8).hex()}"
        config.stash[_SHARED] = Path(tempfile.gettempdir()) / name
    node.workerinput[_FOLDER] = str(config.stash[_SHARED])


def pytest_unconfigure(config: pytest.Config) -> None:
    folder = config.stash.get(_SHARED, None)
    if folder is not None and folder.exists():
        import shutil

        shutil.rmtree(folder, ignore_errors=True)


def _runs(config: pytest.Config) -> ProbeRuns:
    if _RUNS not in config.stash:
        from ematix_probe.history.store import default_history
        from ematix_probe.pytest_runs import ProbeRuns

        folder = getattr(config, "workerinput", {}).get(_FOLDER)
        named = config.getoption("--probe-history") or config.getini("probe_history")
        hosts = [*config.getini("probe_allow_hosts"), *config.getoption("--probe-allow-host")]
        shared = None if folder is None else Path(folder)
        config.stash[_RUNS] = ProbeRuns(shared, default_history(named, os.environ), hosts)
    return config.stash[_RUNS]


# ------------------------------------------------------------------------------------------ collecting


def pytest_pycollect_makeitem(collector: pytest.Collector, name: str, obj: object) -> ProbeNode | None:
    kind = type(obj)  # asked instead of the object, which may answer every question
    if not (callable(getattr(kind, "assertion_names", None)) and callable(getattr(kind, "run", None))):
        return None
    node: ProbeNode = ProbeNode.from_parent(collector, name=name, probe=obj)
    return node


class ProbeNode(pytest.Collector):
    """A probe in a test module."""

    def __init__(self, *, probe: Any, **named: Any) -> None:
        super().__init__(**named)
        self.probe = probe
        self.key = _runs(self.config).register(probe)
        self.add_marker("probe")
        if not hasattr(probe, "source"):
            self.add_marker("load_probe")
        if self.config.pluginmanager.hasplugin("xdist"):
            self.add_marker(pytest.mark.xdist_group(name=f"probe-{self.key}"))

    def collect(self) -> Iterator[AssertionItem]:
        taken: dict[str, int] = {}
        for index, label in enumerate(self.probe.assertion_names()):
            name = label.replace("::", ":")[:_LONGEST_NAME]
            taken[name] = taken.get(name, 0) + 1
            if taken[name] > 1:
                name = f"{name}#{taken[name]}"
            yield AssertionItem.from_parent(self, name=name, index=index)


class AssertionItem(pytest.Item):
    """One assertion of a probe as a test."""

    parent: ProbeNode

    def __init__(self, *, index: int, **named: Any) -> None:
        super().__init__(**named)
        self._index = index

    def runtest(self) -> None:
        runs, probe = _runs(self.config), self.parent.probe
        run = runs.result(self.parent.key, probe)
        for unrecorded in runs.take_warnings():
            self.warn(ProbeWarning(unrecorded))
        if run.error is not None:
            raise AssertionDoesNotHold(run.error)
        assert run.report is not None
        found = [each for each in run.report.assertions if each.assertion_index == self._index]
        if not found:
            raise AssertionDoesNotHold(f"the run of {self.parent.name} has no result of this assertion")
        (result,) = found
        self.user_properties.append(("verdict", result.verdict))
        if result.verdict == "pass":
            return
        from ematix_probe.reports.text import failing_lines

        text = "\n".join(failing_lines(result, ""))
        if result.verdict == "warn" and not self._fails_on_warn():
            self.warn(ProbeWarning(f"{run.report.probe_name}: {text}"))
            return
        of = f"{run.report.probe_name} ({run.report.subject})"
        raise AssertionDoesNotHold(f"{text.removeprefix(f'{result.name}: ')}\n{result.verdict} in {of}")

    def _fails_on_warn(self) -> bool:
        return bool(self.config.getoption("--probe-fail-on-warn") or self.config.getini("probe_fail_on_warn"))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The assertion's own words: a traceback of this plugin would help nobody."""
        if isinstance(excinfo.value, AssertionDoesNotHold):
            where = _where(self.parent.probe)
            declared = f", declared at {where[0]}:{where[1]}" if where else ""
            return f"{excinfo.value}{declared}"
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path | str, int | None, str]:
        where = _where(self.parent.probe)
        if where is None:
            return self.path, None, f"{self.parent.name}: {self.name}"
        return where[0], where[1] - 1, f"{self.parent.name}: {self.name}"


def _where(probe: Any) -> tuple[str, int] | None:
    """File and line of the declaration."""
    plan = probe.plan() if hasattr(probe, "plan") else None
    file, _, line = (getattr(plan, "where", None) or "").rpartition(":")
    return (file, int(line)) if file and line.isdigit() else None
