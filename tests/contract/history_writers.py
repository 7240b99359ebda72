"""What other processes do to a history of probes: they record runs, until they are done or killed.

A test starts this file as a program: a fork of the test's own process would share open clients of buckets.
"""

from __future__ import annotations

import datetime as dt
import os
import sys
from collections.abc import Mapping
from typing import Any, NoReturn

from ematix_probe.report import AssertionResult, RunReport, Verdict, worst
from ematix_probe.run_history import RunHistory

NOON = dt.datetime(2026, 5, 17, 12, 0, 0, 123456, tzinfo=dt.timezone.utc)


def report(
    probe: str = "orders", number: int = 0, measures: Mapping[str, Any] | None = None, *verdicts: Verdict
) -> RunReport:
    """Run ``number`` of a probe; the measures are those of its first assertion."""
    found: tuple[Verdict, ...] = verdicts or ("pass",)
    results = [
        AssertionResult(
            index,
            verdict,
            f"message {index} of run {number}",
            f"c{index}.rule",
            "rule",
            failing=index,
            checked=10,
            measures=dict(measures or {}) if index == 0 else {},
            samples=[{"id": 1}],
        )
        for index, verdict in enumerate(found)
    ]
    start = NOON + dt.timedelta(hours=number)
    end = start + dt.timedelta(seconds=1.5)
    metadata = {"source": "here", "n": number}
    return RunReport(probe, "orders", "shop", worst(found), results, start, end, metadata)


def record_three_in_each(url: str, processes: int) -> int:
    """Record three runs in each of so many forks at once; returns how many of them failed."""
    children = []
    gate, opener = os.pipe()
    for number in range(processes):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                os.close(opener)
                os.read(gate, 1)  # ends when the parent has closed its end: all begin together
                history = RunHistory(url)
                for turn in range(3):
                    history.record(report(f"probe {number}", turn, {"row_count": turn}, "pass", "fail"))
                code = 0
            finally:
                os._exit(code)
        children.append(child)
    os.close(opener)
    return sum(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0 for child in children)


def record_until_killed(url: str) -> NoReturn:
    """Record runs of forty assertions, and print a line after each."""
    history = RunHistory(url)
    while True:
        history.record(report("orders", 1, None, *["pass"] * 40))
        print("recorded", flush=True)


if __name__ == "__main__":
    sys.exit(
        record_three_in_each(sys.argv[1], int(sys.argv[2]))
        if len(sys.argv) > 2
        else record_until_killed(sys.argv[1])
    )
