"""How a process is watched and judged: memory of its tree, its marks, its errors, the order of turns."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from benchmarks import rounds
from benchmarks.endpoint import Endpoint
from benchmarks.job import Job, read_marks
from benchmarks.process import Ended, environment, last_words, measured, readable, within
from benchmarks.process_tree import cpu_seconds_of, descendants, parent_of, resident_bytes
from benchmarks.results import Result, Run
from benchmarks.rounds import Settings, all_rounds, finished, order, settled, timed


def test_a_command_with_brackets_and_spaces_does_not_hide_the_parent() -> None:
    assert parent_of("42 (java (x) y) S 7 42 42 0 -1 4194304 100") == 7


def test_a_tree_is_the_process_and_everything_below_it() -> None:
    parents = {10: 1, 11: 10, 12: 11, 13: 1, 14: 13, 1: 0}
    assert descendants(10, parents) == {10, 11, 12}


def test_resident_memory_is_counted_in_pages() -> None:
    assert resident_bytes("1000 25 10 1 0 5 0", 4096) == 25 * 4096


def test_processor_time_includes_that_of_ended_children() -> None:
    stat = "7 (a (b) c) S 1 7 7 0 -1 0 0 0 0 0 150 50 20 30 20 0 1 0 100 0 0"
    assert cpu_seconds_of(stat, 100) == 2.5


def test_every_round_has_every_contestant_once_in_an_order_that_the_seed_decides() -> None:
    names = ["flow", "jdbc", "jdbc-tuned", "driver"]
    turns = order(names, 5, seed=3)
    assert turns == order(names, 5, seed=3)
    for number in range(1, 6):
        assert sorted(name for turn, name in turns if turn == number) == sorted(names)
    assert len({tuple(name for turn, name in turns if turn == n) for n in range(1, 6)}) > 1


@pytest.mark.parametrize(
    ("run", "enough"),
    [
        (Run("jdbc", 1, load_seconds=20.0), False),
        (Run("jdbc", 1, load_seconds=400.0), True),
        (Run("jdbc", 1, over_limit=True), True),
        (Run("jdbc", 1, problem="failed"), True),
    ],
)
def test_what_is_wrong_or_very_long_is_not_measured_again(run: Run, enough: bool) -> None:
    assert settled(run) is enough


def job(tmp_path: Path) -> Job:
    marks = str(tmp_path / "marks.jsonl")
    return Job(
        Endpoint("sqlite", "a"), (Endpoint("duckdb", "b"), Endpoint("duckdb", "c")), ("x.jar",), 2, marks
    )


def test_a_job_is_read_as_it_was_written(tmp_path: Path) -> None:
    given = job(tmp_path)
    given.write(tmp_path / "job.json")
    assert Job.read(tmp_path / "job.json") == given


def test_loading_is_timed_between_the_marks_and_starting_before_them(tmp_path: Path) -> None:
    given = job(tmp_path)
    started = time.monotonic()
    given.mark("ready")
    given.mark("loaded", path="copy")
    given.mark("loaded again")
    marks = read_marks(Path(given.marks))
    memory = ((started, 4), (marks["loaded"].at, 5), (started + 9, 6))
    run = timed("flow", 1, Ended(started, started + 9, 0, "", memory), Path(given.marks))
    assert run.problem is None
    assert run.start_seconds == marks["ready"].at - started
    assert run.load_seconds == marks["loaded"].at - marks["ready"].at
    assert run.again_seconds == marks["loaded again"].at - marks["loaded"].at
    assert run.total_seconds == marks["loaded"].at - started
    assert (run.peak_bytes, run.details["first"]) == (5, {"path": "copy"})


@pytest.mark.parametrize(
    ("marks", "code", "said", "problem"),
    [
        (["ready", "failed"], 1, "", "failed: ValueError: no"),
        (["ready"], -9, "Killed", "ended with code -9: Killed"),
        ([], 1, "Traceback\nModuleNotFoundError: No module named 'x'\n", "ModuleNotFoundError"),
        (["ready"], 0, "", "ended with code 0: it printed nothing"),
    ],
)
def test_a_process_that_did_not_load_is_disqualified(
    tmp_path: Path, marks: list[str], code: int, said: str, problem: str
) -> None:
    given = job(tmp_path)
    for name in marks:
        given.mark(name, **({"error": "ValueError: no"} if name == "failed" else {}))
    run = timed("flow", 1, Ended(0.0, 1.0, code, said), Path(given.marks))
    assert run.load_seconds is None
    assert problem in (run.problem or "")


def test_a_process_that_was_stopped_is_over_the_limit_and_not_wrong(tmp_path: Path) -> None:
    given = job(tmp_path)
    given.mark("ready")
    run = timed("flow", 1, Ended(0.0, 1.0, None, ""), Path(given.marks))
    assert (run.over_limit, run.problem) == (True, None)


def test_a_process_that_never_got_ready_is_disqualified(tmp_path: Path) -> None:
    run = timed("flow", 1, Ended(0.0, 600.0, None, ""), tmp_path / "none")
    assert (run.over_limit, run.problem) == (False, "was not ready after 600 s")


def test_an_error_is_reported_in_one_line_without_paths() -> None:
    told = readable("OSError: cannot write /home/someone/files/x.parquet\n  at line 3")
    assert told == "OSError: cannot write …/x.parquet"
    assert len(readable("x" * 500)) == 200


def test_the_last_cause_of_a_stack_trace_is_reported() -> None:
    said = "x.FirstException: a\n\tat b.c(D.java:1)\nCaused by: java.sql.SQLException: no date\n\tat e\n"
    assert last_words(said) == "Caused by: java.sql.SQLException: no date"


def test_a_measured_process_tells_its_memory_and_its_output(tmp_path: Path) -> None:
    program = "import subprocess, sys, time; held = b'x' * 60_000_000; print('done'); time.sleep(0.4)"
    command = [sys.executable, "-c", program]
    ended = measured(command, tmp_path, os.environ, within(30), tmp_path / "log")
    assert (ended.code, ended.said) == (0, "done\n")
    assert ended.peak_bytes() > 60_000_000
    assert 0.4 < ended.seconds < 30


def test_a_process_beyond_the_limit_is_ended_with_its_children(tmp_path: Path) -> None:
    program = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "print(child.pid, flush=True)\ntime.sleep(60)"
    )
    ended = measured([sys.executable, "-c", program], tmp_path, os.environ, within(1.5), tmp_path / "log")
    assert ended.code is None
    child = int(ended.said)
    deadline = time.monotonic() + 10
    while Path(f"/proc/{child}/stat").exists() and time.monotonic() < deadline:
        if ") Z " in Path(f"/proc/{child}/stat").read_text():
            break  # dead, and not yet collected by its new parent
        time.sleep(0.05)
    assert not Path(f"/proc/{child}/stat").exists() or ") Z " in Path(f"/proc/{child}/stat").read_text()


def test_a_developers_settings_do_not_reach_a_contestant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMATIX_FLOW_ENGINE", "yarn")
    monkeypatch.setenv("EMATIX_FLOW_CACHE", "kept")
    env = environment(tmp_path / "state")
    assert "EMATIX_FLOW_ENGINE" not in env
    assert (env["EMATIX_FLOW_CACHE"], env["EMATIX_FLOW_STATE"]) == ("kept", str(tmp_path / "state"))


def test_a_measurement_that_was_broken_off_goes_on_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds, "UNFINISHED", tmp_path)
    empty = Result("copy", "a-b", "A → B", "2026-01-02T03:04:05+00:00", 10, 900.0, {}, {}, "abc", ())
    settings = Settings(10, 2, 900.0, seed=1, folder=tmp_path)
    names, asked = ["flow", "driver"], []

    def turn(name: str, number: int) -> Run:
        asked.append((number, name))
        if len(asked) == 3:
            raise KeyboardInterrupt
        return Run(name, number, 1.0, 2.0, 3.0, peak_bytes=1)

    with pytest.raises(KeyboardInterrupt):
        all_rounds(empty, names, settings, turn, lambda text: None)
    result = all_rounds(empty, names, settings, turn, lambda text: None)
    assert len(asked) == 5  # the one that was broken off came again, the two before it did not
    assert sorted((run.round, run.contestant) for run in result.runs) == [
        (1, "driver"),
        (1, "flow"),
        (2, "driver"),
        (2, "flow"),
    ]
    finished(result)
    assert list(tmp_path.glob("*.json")) == []
