"""Processes that are killed while they commit a lake load without Spark; the next load settles that."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ematix_flow.testing.loads import PIPELINE, TARGET
from tests.contract.direct_lakes import LAKES, load, named
from tests.lakes import without_spark

pytestmark = [pytest.mark.fault, pytest.mark.timeout(300)]

RUN = "from tests.fault.test_direct_loads_killed import run_alone; run_alone({!r}, {!r}, {!r})"


def run_alone(kind: str, root: str, mode: str) -> None:
    """The body of a process that dies."""
    load(without_spark(LAKES[kind](Path(root)).backend()), named(2, 3), mode, batch_key="second")


def start(kind: str, root: Path, mode: str, fault: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join([str(Path(__file__).resolve().parents[2]), *filter(None, sys.path)])
    return subprocess.run(
        [sys.executable, "-c", RUN.format(kind, str(root), mode)],
        env={**os.environ, "PYTHONPATH": paths, "EMATIX_FLOW_FAULT": f"{fault}=kill"},
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("mode", ["append", "truncate"])
@pytest.mark.parametrize("point", ["apply.before_commit", "apply.after_commit"])
@pytest.mark.parametrize("kind", LAKES)
def test_a_process_that_is_killed_leaves_a_table_as_it_was_or_loaded(
    tmp_path: Path, kind: str, point: str, mode: str
) -> None:
    lake = LAKES[kind](tmp_path / "lake")
    load(without_spark(lake.backend()), named(1), batch_key="first")
    died = start(kind, lake.root, mode, point)
    assert died.returncode == -signal.SIGKILL, died.stderr
    is_committed = point == "apply.after_commit"
    after = [1, 2, 3] if mode == "append" else [2, 3]
    assert lake.ids() == (after if is_committed else [1])
    next_run = without_spark(lake.backend())
    next_run.sweep_staging(PIPELINE, TARGET)
    if mode == "append" or not is_committed:  # else an older version needs the file that was replaced
        assert lake.data_files() == lake.committed_files()
    assert load(next_run, named(2, 3), mode, batch_key="second").duplicate == is_committed
    assert lake.ids() == after
    assert len(next_run.ledger(PIPELINE, TARGET)) == 2
    assert next_run.sweep_staging(PIPELINE, TARGET) == []
