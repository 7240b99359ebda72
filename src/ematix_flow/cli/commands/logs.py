"""``flow logs``: shows the log of a run."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from ematix_flow.cli.command_group import new_app
from ematix_flow.cli.local_time import localize_line
from ematix_flow.cli.options import OutputOption, RunLogOption
from ematix_flow.cli.output import write_json, write_text
from ematix_flow.cli.project import read_run_log
from ematix_flow.cli.terminal import say
from ematix_flow.state.runlog.shown_runs import run_lines_json, run_log_lines

if TYPE_CHECKING:
    from ematix_flow.state.runlog.base import RunLog
    from ematix_flow.state.runlog.records import RunRecord

app = new_app()

_POLL_SECONDS = 1.0


@app.command()
def logs(
    run_id: Annotated[str, typer.Argument(metavar="RUN", hidden=True)],
    tail: Annotated[
        int | None, typer.Option("--tail", "-n", metavar="N", min=1, help="Show only the last N lines.")
    ] = None,
    follow: Annotated[
        bool,
        typer.Option("--follow", "-f", help="Continue until the run ends. Ctrl-C does not stop the run."),
    ] = False,
    run_log: RunLogOption = None,
    output: OutputOption = "text",
) -> int:
    """Show the log lines, warnings and notes of a run. The first characters of its id are enough.

    Times are local, with their zone; with --output json they are in UTC.

    Exit code 1 when the run has no log.
    """
    with read_run_log(run_log) as log:
        record = log.get(run_id)
        lines = run_log_lines(log, record)
        if output == "json":
            shown = lines if tail is None else lines[-tail:]
            write_json(run_lines_json(record, shown))
            return 0 if lines else 1
        for line in lines if tail is None else lines[-tail:]:
            write_text(localize_line(line))
        if follow:
            lines = _follow_run(log, record, lines)
    if not lines:
        state = "has logged nothing yet" if record.status == "running" else "has no log"
        say(f"run {record.run_id} of {record.pipeline} {state}: flow runs show {record.run_id[:8]}")
        return 1
    return 0


def _follow_run(log: RunLog, record: RunRecord, seen: list[str]) -> list[str]:
    """Print new lines until the run has ended, or its process on this machine is gone."""
    from ematix_flow.state.process_liveness import run_is_dead

    run_id = record.run_id
    while True:
        gone = run_is_dead(record)
        over = (
            log.get(run_id).status != "running"
        )  # read before the lines, so that the last lines are not missed
        lines = (log.output(run_id) or "").splitlines()
        for line in lines[_count_seen(lines, seen) :]:
            write_text(localize_line(line))
        seen = lines
        if over:
            return seen
        if gone:
            say(f"run {run_id} did not record how it ended, and its process {record.pid} is gone")
            return seen
        time.sleep(_POLL_SECONDS)


def _count_seen(lines: list[str], seen: list[str]) -> int:
    """How many of the lines were already printed. The log keeps only its end, so early lines may be gone."""
    for first in range(len(seen) + 1):
        if lines[: len(seen) - first] == seen[first:]:
            return len(seen) - first
    return 0
