"""Commit points: what arming one does, in this process and in a child."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import timeit
from pathlib import Path

import pytest

from ematix_flow import fault_points
from ematix_flow.errors import ConfigError


def test_a_point_does_nothing_unless_it_is_armed() -> None:
    for name in fault_points.POINTS:
        fault_points.point(name)


def test_an_undeclared_point_is_refused_with_the_name_that_was_probably_meant() -> None:
    with pytest.raises(LookupError, match=r"apply\.befor_commit.*Did you mean 'apply\.before_commit'"):
        fault_points.point("apply.befor_commit")
    with pytest.raises(LookupError, match="not declared"), fault_points.inject("no.such.point", "crash"):
        pass


def test_every_step_of_the_commit_protocol_is_declared_with_its_meaning() -> None:
    assert {
        "staging.created",
        "task.staged",
        "staging.loaded",
        "apply.began",
        "apply.table_changed",
        "apply.first_rows_written",
        "gate.checked",
        "gate.quarantined",
        "gate.replay_removed",
        "quarantine.noted",
        "quarantine.written",
        "quarantine.settled",
        "apply.ledger_written",
        "apply.rows_written",
        "apply.before_commit",
        "apply.after_commit",
        "staging.dropped",
        "post.recorded",
        "runlog.before_finish",
        "files.version_written",
        "files.before_publish",
        "files.after_publish",
        "fold.entries_written",
        "fold.counts",
        "fold.files_removed",
        "spool.written",
        "spool.indexed",
        "spool.renamed",
        "spool.settled",
        "spool.acknowledged",
        "messages.produced",
        "messages.before_commit",
        "messages.after_commit",
        "stream.dead_letters_sent",
        "stream.dead_letters",
        "stream.state_committed",
        "stream.state_mirrored",
        "stream.staged",
        "stream.target_committed",
        "stream.sent",
        "replay.committed",
        "stream.committed",
        "stream.acknowledged",
        "action.requested",
        "action.effected",
        "action.claimed",
        "action.begun",
        "action.carried_out",
        "restart.run_ended",
        "restart.slot_ended",
    } == fault_points.POINTS
    assert fault_points.declared_points().keys() >= fault_points.POINTS
    assert all(fault_points.declared_points().values())


def test_a_point_is_declared_once() -> None:
    with pytest.raises(ValueError, match="twice"):
        fault_points.declare_point("apply.began", "again")


def test_an_injected_crash_passes_handlers_of_ordinary_exceptions() -> None:
    def load() -> None:
        try:
            fault_points.point("apply.before_commit")
        except Exception:
            pytest.fail("a crash was handled")

    with (
        fault_points.inject("apply.before_commit", "crash") as fault,
        pytest.raises(fault_points.InjectedCrash),
    ):
        load()
    assert fault.has_fired


def test_an_injected_failure_is_an_ordinary_exception() -> None:
    with (
        fault_points.inject("staging.loaded", "raise"),
        pytest.raises(Exception, match=r"at staging\.loaded"),
    ):
        fault_points.point("staging.loaded")


def test_a_fault_acts_once_at_the_nth_time_and_only_at_its_point() -> None:
    with fault_points.inject("apply.began", "raise", nth=2) as fault:
        fault_points.point("apply.began")
        fault_points.point("staging.loaded")
        assert not fault.has_fired
        with pytest.raises(fault_points.InjectedFailure):
            fault_points.point("apply.began")
        fault_points.point("apply.began")
        assert fault.hits == 3


def test_a_point_is_harmless_again_after_the_block() -> None:
    with pytest.raises(fault_points.InjectedCrash), fault_points.inject("apply.began", "crash"):
        fault_points.point("apply.began")
    fault_points.point("apply.began")


def test_an_inner_injection_gives_way_to_the_outer_one() -> None:
    with fault_points.inject("apply.began", "crash"):
        with fault_points.inject("apply.began", "raise"), pytest.raises(fault_points.InjectedFailure):
            fault_points.point("apply.began")
        with pytest.raises(fault_points.InjectedCrash):
            fault_points.point("apply.began")


def test_a_fault_reaches_code_in_other_threads() -> None:
    seen: list[BaseException] = []

    def load() -> None:
        try:
            fault_points.point("apply.began")
        except fault_points.InjectedCrash as crash:
            seen.append(crash)

    with fault_points.inject("apply.began", "crash"):
        thread = threading.Thread(target=load)
        thread.start()
        thread.join()
    assert len(seen) == 1


def test_a_test_may_look_at_the_world_from_a_commit_point() -> None:
    seen: list[str] = []
    with fault_points.inject("apply.rows_written", lambda: seen.append("looked")):
        fault_points.point("apply.rows_written")
    assert seen == ["looked"]


@pytest.mark.parametrize(("action", "nth"), [("explode", 1), ("crash", 0)])
def test_a_wrong_injection_is_refused(action: str, nth: int) -> None:
    with pytest.raises(ValueError, match="not a fault"), fault_points.inject("apply.began", action, nth):  # type: ignore[arg-type]
        pass


CHILD = """
from ematix_flow import fault_points
for turn in (1, 2):
    print(turn, flush=True)
    fault_points.point("apply.began")
"""


def _child(setting: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "EMATIX_FLOW_FAULT": setting}
    return subprocess.run(
        [sys.executable, "-c", CHILD],
        env=environment,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def test_the_environment_kills_a_child_at_the_nth_time_without_cleanup() -> None:
    child = _child("staging.loaded=raise, apply.began=kill:2")
    assert child.returncode == -signal.SIGKILL
    assert child.stdout == "1\n2\n"
    assert child.stderr == ""


def test_of_processes_that_share_a_file_one_fails(tmp_path: Path) -> None:
    setting = f"apply.began=kill@{tmp_path / 'once'}"
    assert [_child(setting).returncode for _ in range(3)] == [-signal.SIGKILL, 0, 0]


def test_the_environment_crashes_a_child() -> None:
    child = _child("apply.began=crash")
    assert child.returncode == 1
    assert "InjectedCrash" in child.stderr
    assert child.stdout == "1\n"


@pytest.mark.parametrize(
    "setting", ["apply.began", "apply.began=explode", "apply.began=kill:0", "apply.began=kill:x"]
)
def test_a_setting_that_cannot_be_read_is_refused(setting: str) -> None:
    with pytest.raises(ConfigError, match="EMATIX_FLOW_FAULT"):
        fault_points.arm_from_setting(setting)


def test_a_setting_that_names_no_point_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"not a commit point.*Did you mean 'apply\.began'"):
        fault_points.arm_from_setting("apply.begun=kill")


def test_an_empty_setting_arms_nothing() -> None:
    fault_points.arm_from_setting("")
    fault_points.arm_from_setting(" , ")


def test_a_point_that_is_not_armed_costs_next_to_nothing() -> None:
    seconds = min(timeit.repeat(lambda: fault_points.point("apply.began"), number=10_000, repeat=5))
    assert seconds / 10_000 < 5e-6
