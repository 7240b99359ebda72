"""Commands about actions in processes that are forked from a warm one, so that many of them can be killed."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[2]
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["tests.fault.action_processes_warm"])


def start(folder: Path, arguments: Sequence[str], fault: str = "") -> Any:
    """Start ``flow`` with these arguments in a process, which dies where ``fault`` says."""
    process = _FORKS.Process(target=_flow, args=(str(folder), list(arguments), fault, dict(os.environ)))
    with _python_path():  # for the warm process, which is started by the first
        process.start()
    return process


@contextmanager
def _python_path() -> Iterator[None]:
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_ROOT), *sys.path]))
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


def run(folder: Path, arguments: Sequence[str], fault: str = "") -> int:
    """Run such a process to its end and return its exit code, minus the signal that killed it."""
    process = start(folder, arguments, fault)
    process.join(120)
    assert process.exitcode is not None, f"flow {' '.join(arguments)} was stuck"
    return int(process.exitcode)


def _flow(folder: str, arguments: list[str], fault: str, environment: Mapping[str, str]) -> None:
    from ematix_flow import fault_points
    from ematix_flow.cli.main import main

    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.path.insert(0, folder)
    fault_points.arm_from_setting(fault)
    sys.exit(main(arguments))
