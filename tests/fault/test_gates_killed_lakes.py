"""Gated loads of files and lakes whose process is killed: no row is lost, doubled or set aside twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.contract.test_gates_files import FilesGateTarget, aside, files_target, order, positive
from tests.contract.test_gates_lake import LakeGateTarget

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.fault

LONG = pytest.mark.long
FILES = (
    pytest.param("gate.checked", marks=LONG),
    "quarantine.written",
    pytest.param("apply.after_commit:2", marks=LONG),  # of the quarantine table first, then of the target
    "quarantine.settled",
)
LAKES = ("quarantine.noted", "quarantine.written", "apply.before_commit", "apply.after_commit")
BATCH = [order(3, 3), order(4, -4)]
RUN = (
    "from pathlib import Path; from tests.fault.test_gates_killed_lakes import load_alone; "
    "load_alone(Path('.'), {!r})"
)


def load_alone(folder: Path, kind: str) -> None:
    """The body of the process that is killed. For a lake it has its own Spark."""
    if kind == "parquet":
        target: FilesGateTarget | LakeGateTarget = files_target(folder, kind)
    else:
        from ematix_flow.engine.spark.session import spark_session
        from ematix_flow.engine.spark.settings import EngineSettings

        session = spark_session(EngineSettings.resolve(env={}), jar_groups=(kind,))
        target = LakeGateTarget(kind, folder / "files", session)
    target.load(positive("quarantine"), BATCH, batch_key="slot:1")


def kill_and_load_again(
    target: FilesGateTarget | LakeGateTarget, folder: Path, kind: str, fault: str, *, committed: bool
) -> None:
    target.load(positive("quarantine"), [order(1, 1), order(2, -2)])
    name, _, nth = fault.partition(":")
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).resolve().parents[2]), *filter(None, sys.path)]),
        "EMATIX_FLOW_FAULT": f"{name}=kill:{nth or 1}",
    }
    with (folder / "output").open("wb") as output:
        killed = subprocess.run(
            [sys.executable, "-c", RUN.format(kind)],
            cwd=folder,
            env=environment,
            stdout=output,
            stderr=output,
            check=False,
        )
    assert killed.returncode == -signal.SIGKILL, (folder / "output").read_text()
    assert (order(3, 3) in target.rows()) == committed
    again = target.load(positive("quarantine"), BATCH, batch_key="slot:1")
    assert again.duplicate == committed
    target.load(positive("quarantine"), [order(5, 5)])
    assert target.rows() == [order(1, 1), order(3, 3), order(5, 5)]
    assert target.quarantined() == [aside(order(2, -2)), aside(order(4, -4))]


@pytest.mark.parametrize("fault", FILES)
def test_a_killed_load_of_files_sets_every_row_aside_once(tmp_path: Path, fault: str) -> None:
    committed = fault in ("apply.after_commit:2", "quarantine.settled")
    kill_and_load_again(files_target(tmp_path, "parquet"), tmp_path, "parquet", fault, committed=committed)


@pytest.mark.long
@pytest.mark.parametrize("fault", LAKES)
@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_a_killed_load_of_a_lake_sets_every_row_aside_once(
    tmp_path: Path, spark: SparkSession, kind: str, fault: str
) -> None:
    target = LakeGateTarget(kind, tmp_path / "files", spark)
    kill_and_load_again(target, tmp_path, kind, fault, committed=fault == "apply.after_commit")
