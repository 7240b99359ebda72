"""Shows runs in progress: live lines in a terminal, plain lines elsewhere, JSON with --log-format json."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from ematix_flow.cli.error_report import error_lines
from ematix_flow.cli.json_log import json_stderr
from ematix_flow.cli.local_time import format_local_time, local_zone_name
from ematix_flow.cli.terminal import is_terminal, style_text, terminal_width, write
from ematix_flow.cli.throughput import describe_throughput
from ematix_flow.observe.listener import Attempt, Listener, Progress
from ematix_flow.observe.run_logging import LoggingListener, log_event
from ematix_flow.observe.throughput import Throughput
from ematix_probe.control_characters import mask_and_escape

if TYPE_CHECKING:
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

    from ematix_flow.plan.definition import Plan
    from ematix_flow.plan.results import RunResult
    from ematix_flow.run.dag import PipelineOutcome
    from ematix_flow.schedule.run_due import SlotOutcome

_SECONDS_BETWEEN_LINES = 5.0
_WIDE_TERMINAL = 110  # columns of a terminal that has room for a long bar
_STAGE_LABELS = {
    "start Spark": "starting Spark",
    "prepare": "preparing the table",
    "read": "reading",
    "copy": "copying",
    "transform": "computing",
    "apply": "committing",
}
STATUS_MARKS = {
    "succeeded": ("✓", "green"),
    "skipped": ("–", "yellow"),
    "locked": ("–", "yellow"),
    "cancelled": ("–", "yellow"),
    "failed": ("✗", "bold red"),
    "not_run": ("–", "yellow"),
    "waiting": ("…", "yellow"),
    "gave_up": ("✗", "bold red"),
    "lost": ("–", "yellow"),
}


class RunView(Listener):
    """Base of the views: one line when a pipeline ends, its error below, its plan above if asked for.

    Several runs may be in progress at once: each has a `WatchedRun`, which calls the view.
    """

    def __init__(
        self, names: Sequence[str], *, show_plans: bool = False, stream: TextIO | None = None
    ) -> None:
        self.stream = sys.stderr if stream is None else stream
        self.outcomes: list[PipelineOutcome] = []
        self._names = list(names)
        self._started: set[str] = set()
        self._width = max((len(name) for name in names), default=0)
        self._show_plans = show_plans

    @property
    def has_several_pipelines(self) -> bool:
        """Whether lines need the name of their pipeline."""
        return len(self._names) > 1

    def started(self, name: str) -> None:
        """A pipeline starts. Passed to `run_dag` as ``before``."""
        self._started.add(name)

    def finished(self, outcome: PipelineOutcome) -> None:
        """A pipeline ended. Passed to `run_dag` as ``after``."""
        self.outcomes.append(outcome)
        mark, style = STATUS_MARKS[outcome.status]
        self.write_line(
            f"{style_text(mark, style, self.stream)} {outcome.pipeline:<{self._width}} "
            f" {outcome_summary(outcome)}"
        )
        if outcome.error is not None:
            self.write_line(error_lines(outcome.error, self.stream))

    def outcomes_after_interrupt(self) -> list[PipelineOutcome]:
        """The outcomes of an interrupted run, with the pipelines that it stopped or did not start."""
        from ematix_flow.run.dag import PipelineOutcome

        ended = {outcome.pipeline for outcome in self.outcomes}
        return self.outcomes + [
            PipelineOutcome(name, "cancelled", reason="interrupted")
            if name in self._started
            else PipelineOutcome(name, "not_run", reason="not started before the interrupt")
            for name in self._names
            if name not in ended
        ]

    def slot_finished(self, outcome: SlotOutcome) -> None:
        """A slot ended or has to wait. Passed to `SlotRunner.run_due` as ``after``."""
        mark, style = STATUS_MARKS["failed" if outcome.error is not None else outcome.status]
        text = _result_summary(outcome.result) if outcome.status == "succeeded" and outcome.result else None
        text = text or ": ".join(filter(None, (outcome.status.replace("_", " "), outcome.reason)))
        if outcome.error is not None:  # which follows
            text = text.removesuffix(f": {outcome.error.what}")
        name = f"{outcome.slot.pipeline:<{self._width}}"
        self.write_line(
            f"{style_text(mark, style, self.stream)} {name}  "
            f"{format_local_time(outcome.slot.fire_time)} {local_zone_name()}  {mask_and_escape(text)}"
        )
        if outcome.error is not None:
            self.write_line(error_lines(outcome.error, self.stream))

    def run_started(self, attempt: Attempt) -> Listener:
        return WatchedRun(self, attempt)

    def planned(self, plan: Plan) -> None:
        if self._show_plans:
            self.write_line(_escape_lines(f"{plan}\n"))

    def note(self, text: str) -> None:
        self.write_line(f"  note: {_escape_lines(text)}")

    def write_line(self, text: str) -> None:
        write(text, self.stream)

    # ------------------------------------------------------------------ called by the runs

    def run_began(self, run: WatchedRun) -> None:
        """A run started."""

    def stage_began(self, run: WatchedRun, stage: str) -> None:
        """A run started another stage."""

    def run_progressed(self, run: WatchedRun) -> None:
        """A run made progress."""

    def run_ended(self, run: WatchedRun) -> None:
        """A run ended."""

    @contextmanager
    def display(self) -> Iterator[None]:
        """Show the view on the screen within the block."""
        yield


class WatchedRun(Listener):
    """One run in progress, which reports to its view."""

    def __init__(self, view: RunView, attempt: Attempt) -> None:
        self.attempt = attempt
        self.throughput = Throughput(time.monotonic())
        self.last_line_at = time.monotonic()
        self._view = view
        self._progress_by_target: dict[str, Progress] = {}
        view.run_began(self)

    def run_started(self, attempt: Attempt) -> Listener:
        return self._view.run_started(attempt)

    def planned(self, plan: Plan) -> None:
        self._view.planned(plan)

    def stage_started(self, target: str, stage: str) -> None:
        self.throughput = Throughput(time.monotonic())
        self._progress_by_target.clear()
        self._view.stage_began(self, stage)

    def progress(self, target: str, progress: Progress) -> None:
        self._progress_by_target[target] = progress
        slowest = min(self._progress_by_target.values(), key=lambda reached: reached.rows)
        self.throughput.record(time.monotonic(), slowest)
        if slowest.rows:
            self._view.run_progressed(self)

    def note(self, text: str) -> None:
        self._view.note(f"{self.attempt.pipeline}: {text}" if self._view.has_several_pipelines else text)

    def run_finished(self, result: RunResult | None, error: BaseException | None) -> None:
        self._view.run_ended(self)


class LineView(RunView):
    """For a log or a pipe: a plain line every few seconds."""

    def stage_began(self, run: WatchedRun, stage: str) -> None:
        if stage == "start Spark" and not _spark_is_warm():
            self.write_line(f"  {run.attempt.pipeline}: starting Spark")

    def run_progressed(self, run: WatchedRun) -> None:
        if time.monotonic() - run.last_line_at >= _SECONDS_BETWEEN_LINES:
            run.last_line_at = time.monotonic()
            self.write_line(f"  {run.attempt.pipeline}: {describe_throughput(run.throughput)}")


class LiveView(RunView):
    """For a terminal: how many pipelines are done, and the progress of each running one."""

    def __init__(
        self, names: Sequence[str], *, show_plans: bool = False, stream: TextIO | None = None
    ) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bars

        super().__init__(names, show_plans=show_plans, stream=stream)
        wide = (terminal_width(self.stream) or 0) >= _WIDE_TERMINAL
        self._bars: Bars = Bars(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24 if wide else 8),
            TimeElapsedColumn(),
            TextColumn("{task.fields[detail]}", markup=False),
            console=Console(file=self.stream, highlight=False, soft_wrap=True),
            transient=True,
        )
        self._overall: TaskID = self._bars.add_task(
            "pipelines", total=len(names), detail=f"0 of {len(names)}", visible=False
        )
        self._bar_by_run: dict[str, TaskID] = {}

    @contextmanager
    def display(self) -> Iterator[None]:
        with self._bars:
            yield

    def write_line(self, text: str) -> None:
        from rich.text import Text

        self._bars.console.print(Text.from_ansi(text))

    def started(self, name: str) -> None:
        super().started(name)
        self._bars.update(self._overall, visible=self.has_several_pipelines)

    def finished(self, outcome: PipelineOutcome) -> None:
        super().finished(outcome)
        done = len(self.outcomes)
        self._bars.update(self._overall, completed=done, detail=f"{done} of {len(self._names)}")

    def run_began(self, run: WatchedRun) -> None:
        self._bar_by_run[run.attempt.run_id] = self._bars.add_task(
            run.attempt.pipeline, total=None, detail="planning"
        )

    def stage_began(self, run: WatchedRun, stage: str) -> None:
        bar = self._bar_by_run[run.attempt.run_id]
        self._bars.update(bar, detail=_STAGE_LABELS.get(stage, stage))

    def run_progressed(self, run: WatchedRun) -> None:
        pace = run.throughput
        self._bars.update(
            self._bar_by_run[run.attempt.run_id],
            total=pace.expected_rows,
            completed=pace.progress.rows,
            detail=describe_throughput(pace),
        )

    def run_ended(self, run: WatchedRun) -> None:
        self._bars.remove_task(self._bar_by_run.pop(run.attempt.run_id))


class QuietView(RunView):
    """Shows only failures, and pipelines that did not run because of one."""

    def finished(self, outcome: PipelineOutcome) -> None:
        if outcome.error is not None or outcome.status == "not_run":
            super().finished(outcome)
        else:
            self.outcomes.append(outcome)

    def slot_finished(self, outcome: SlotOutcome) -> None:
        if outcome.error is not None or outcome.status == "skipped":
            super().slot_finished(outcome)

    def note(self, text: str) -> None:
        return None


class JsonView(RunView):
    """For a log collector: the JSON lines of `run_logging`; with ``quiet`` only those of failures."""

    def __init__(self, names: Sequence[str], *, quiet: bool = False) -> None:
        super().__init__(names)
        self._quiet = quiet
        self._lines = LoggingListener(failure=logging.ERROR, only_failures=quiet)

    def run_started(self, attempt: Attempt) -> Listener:
        return self._lines.run_started(attempt)

    def finished(self, outcome: PipelineOutcome) -> None:
        self.outcomes.append(outcome)
        if outcome.status == "not_run":  # the runs of all others wrote their own lines
            log_event(
                logging.WARNING,
                "run_finished",
                f"{outcome.pipeline}: not run: {outcome.reason}",
                pipeline=outcome.pipeline,
                status=outcome.status,
            )

    def slot_finished(self, outcome: SlotOutcome) -> None:
        if self._quiet and outcome.error is None:
            return
        reason = f": {outcome.reason}" if outcome.reason else ""
        log_event(
            logging.ERROR if outcome.status == "gave_up" else logging.INFO,
            "slot_finished",
            f"{outcome.slot.pipeline}: {outcome.status.replace('_', ' ')}{reason}",
            pipeline=outcome.slot.pipeline,
            slot=outcome.slot.fire_time.isoformat(),
            status=outcome.status,
        )


def choose_view(
    names: Sequence[str],
    *,
    quiet: bool = False,
    show_plans: bool = False,
    stream: TextIO | None = None,
) -> RunView:
    """The view that fits the output stream, which is stderr by default."""
    stream = sys.stderr if stream is None else stream
    if stream is json_stderr():
        return JsonView(names, quiet=quiet)
    if quiet:
        return QuietView(names, show_plans=show_plans, stream=stream)
    kind = LiveView if is_terminal(stream) else LineView
    return kind(names, show_plans=show_plans, stream=stream)


def outcome_summary(outcome: PipelineOutcome) -> str:
    """How a pipeline ended, in one line."""
    result = outcome.result
    if outcome.status in ("failed", "locked"):  # its error is printed below
        return outcome.status
    if result is None or outcome.status != "succeeded":
        return mask_and_escape(f"{outcome.status.replace('_', ' ')}: {outcome.reason}")
    return _result_summary(result)


def _result_summary(result: RunResult) -> str:
    """What a run did, in one line."""
    start = sum(seconds for t in result.targets for name, seconds in t.seconds if name == "start Spark")
    spark = f", {start:.1f} of them to start Spark" if start >= 1 else ""
    return f"{_row_counts_text(result)} in {result.seconds:.1f} s{spark} ({result.path})"


def _row_counts_text(result: RunResult) -> str:
    """The row counts, as far as they matter for the modes."""
    noun = "row" if result.rows_inserted == 1 else "rows"
    if {t.mode for t in result.targets} & {"merge", "scd2"}:
        counts = {
            f"{noun} inserted": result.rows_inserted,
            "updated": result.rows_updated,
            "deleted": result.rows_deleted,
            "unchanged": result.rows_unchanged,
        }
        parts = [f"{number:,} {word}" for word, number in counts.items() if number or "inserted" in word]
        return ", ".join(parts)
    instead = f" in place of {result.rows_deleted:,}" if result.rows_deleted else ""
    return f"{result.rows_inserted:,} {noun}{instead}"


def _spark_is_warm() -> bool:
    module = sys.modules.get("pyspark.sql")
    return module is not None and module.SparkSession.getActiveSession() is not None


def _escape_lines(text: str) -> str:
    return mask_and_escape(text, keep="\n")
