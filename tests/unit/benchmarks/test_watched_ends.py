from __future__ import annotations

from benchmarks.results import Run
from benchmarks.watched_ends import UNWATCHED, held_to_the_budget


def test_who_ends_more_than_five_seconds_after_the_unwatched_has_a_problem() -> None:
    runs = [
        Run(UNWATCHED, 1, total_seconds=2.0),
        Run("all hang", 1, total_seconds=7.5),
        Run(UNWATCHED, 2, total_seconds=3.0),
        Run("all hang", 2, total_seconds=8.5),
        Run("all refuse", 1, problem="ended with code 2"),
    ]
    problems = [run.problem for run in held_to_the_budget(runs)]
    assert problems == [None, None, None, "ended 5.5 s later", "ended with code 2"]
