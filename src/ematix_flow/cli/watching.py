"""What a person sees while pipelines run: a live line in a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from ematix_flow.cli.failures import error_lines
from ematix_flow.cli.terminal import is_terminal, styled, write
from ematix_flow.observe.listener import Listener

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from ematix_flow.engine.results import RunResult
    from ematix_flow.plan.definition import Plan
    from ematix_flow.schedule.dag import Outcome

_SECONDS_BETWEEN_LINES = 5.0
_STAGES = {
    "start Spark": "starting Spark",
    "prepare": "preparing the table",
    "read": "reading",
    "copy": "copying",
    "transform": "computing",
    "apply": "committing",
}
MARKS = {
    "succeeded": ("✓", "green"),
    "skipped": ("–", "yellow"),
    "failed": ("✗", "bold red"),
    "not_run": ("–", "yellow"),
}


class RunView(Listener):
    """The base of both views: one line when a pipeline ends, its error below, its plan above if asked."""

    def __init__(
        self, names: Sequence[str], *, show_plans: bool = False, stream: TextIO | None = None
    ) -> None:
        self.stream = sys.stderr if stream is None else stream
        self.outcomes: list[Outcome] = []
        self._names = list(names)
        self._width = max((len(name) for name in names), default=0)
        self._show_plans = show_plans
        self._current = ""

    def started(self, name: str) -> None:
        """A pipeline is next. Passed to `run_dag` as ``before``."""
        self._current = name

    def finished(self, outcome: Outcome) -> None:
        """A pipeline ended. Passed to `run_dag` as ``after``."""
        self.outcomes.append(outcome)
        mark, style = MARKS[outcome.status]
        self.talk(f"{styled(mark, style, self.stream)} {outcome.pipeline:<{self._width}}  {summary(outcome)}")
        if outcome.error is not None:
            self.talk(error_lines(outcome.error, self.stream))

    def planned(self, plan: Plan) -> None:
        if self._show_plans:
            self.talk(f"{plan}\n")

    def note(self, text: str) -> None:
        self.talk(f"  note: {text}")

    def talk(self, text: str) -> None:
        write(text, self.stream)

    @contextmanager
    def shown(self) -> Iterator[None]:
        """The view is on the screen within the block."""
        yield

    def for_pipeline(self, name: str) -> Listener:
        """Where several run side by side, a note says whose it is, and no line moves."""
        return _OneOfSeveral(self, name)


class _OneOfSeveral(Listener):
    def __init__(self, view: RunView, name: str) -> None:
        self._view, self._name = view, name

    def planned(self, plan: Plan) -> None:
        self._view.planned(plan)

    def note(self, text: str) -> None:
        self._view.note(f"{self._name}: {text}")


class LineView(RunView):
    """For a log or a pipe: a line now and then, nothing that moves."""

    def __init__(
        self, names: Sequence[str], *, show_plans: bool = False, stream: TextIO | None = None
    ) -> None:
        super().__init__(names, show_plans=show_plans, stream=stream)
        self._said_at = 0.0

    def started(self, name: str) -> None:
        super().started(name)
        self._said_at = time.monotonic()

    def stage_started(self, target: str, stage: str) -> None:
        if stage == "start Spark" and not _spark_is_warm():
            self.talk(f"  {self._current}: starting Spark")

    def rows(self, target: str, count: int) -> None:
        if count and time.monotonic() - self._said_at >= _SECONDS_BETWEEN_LINES:
            self._said_at = time.monotonic()
            self.talk(f"  {self._current}: {count:,} rows so far")


class LiveView(RunView):
    """For a terminal: how many pipelines are done, and what the present one is at."""

    def __init__(
        self, names: Sequence[str], *, show_plans: bool = False, stream: TextIO | None = None
    ) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        super().__init__(names, show_plans=show_plans, stream=stream)
        self._progress: Progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[detail]}", markup=False),
            TimeElapsedColumn(),
            console=Console(file=self.stream, highlight=False, soft_wrap=True),
            transient=True,
        )
        self._overall: TaskID = self._progress.add_task(
            "pipelines", total=len(names), detail=f"0 of {len(names)}", visible=len(names) > 1
        )
        self._task: TaskID | None = None
        self._since = 0.0

    @contextmanager
    def shown(self) -> Iterator[None]:
        with self._progress:
            yield

    def talk(self, text: str) -> None:
        from rich.text import Text

        self._progress.console.print(Text.from_ansi(text))

    def started(self, name: str) -> None:
        super().started(name)
        self._task = self._progress.add_task(name, total=None, detail="planning")

    def finished(self, outcome: Outcome) -> None:
        if self._task is not None:
            self._progress.remove_task(self._task)
            self._task = None
        super().finished(outcome)
        done = len(self.outcomes)
        self._progress.update(self._overall, completed=done, detail=f"{done} of {len(self._names)}")

    def stage_started(self, target: str, stage: str) -> None:
        self._since = time.monotonic()
        self._show(_STAGES.get(stage, stage))

    def rows(self, target: str, count: int) -> None:
        if count:
            seconds = max(time.monotonic() - self._since, 0.001)
            self._show(f"{count:,} rows, {count / seconds:,.0f} a second")

    def _show(self, detail: str) -> None:
        if self._task is not None:
            self._progress.update(self._task, detail=detail)


class QuietView(RunView):
    """Says nothing but what failed."""

    def finished(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        if outcome.error is not None:
            self.talk(error_lines(outcome.error, self.stream))

    def note(self, text: str) -> None:
        return None


def choose_view(
    names: Sequence[str],
    *,
    quiet: bool = False,
    show_plans: bool = False,
    together: bool = False,
    stream: TextIO | None = None,
) -> RunView:
    """The view that fits the stream, which is stderr unless told; ``together``: several run at once."""
    stream = sys.stderr if stream is None else stream
    if quiet:
        return QuietView(names, show_plans=show_plans, stream=stream)
    kind = LiveView if is_terminal(stream) and not together else LineView
    return kind(names, show_plans=show_plans, stream=stream)


def summary(outcome: Outcome) -> str:
    """One line on how a pipeline ended."""
    result = outcome.result
    if outcome.status == "failed":
        return "failed"
    if result is None or outcome.status != "succeeded":
        return f"{outcome.status.replace('_', ' ')}: {outcome.reason}"
    start = sum(seconds for t in result.targets for name, seconds in t.seconds if name == "start Spark")
    spark = f", {start:.1f} of them to start Spark" if start >= 1 else ""
    return f"{_rows(result)} in {result.seconds:.1f} s{spark} ({result.path})"


def _rows(result: RunResult) -> str:
    """What became of the rows, in as few words as the modes need."""
    noun = "row" if result.rows_inserted == 1 else "rows"
    if {t.mode for t in result.targets} & {"merge", "scd2"}:
        counts = {
            f"{noun} inserted": result.rows_inserted,
            "updated": result.rows_updated,
            "deleted": result.rows_deleted,
            "unchanged": result.rows_unchanged,
        }
        told = [f"{number:,} {word}" for word, number in counts.items() if number or "inserted" in word]
        return ", ".join(told)
    instead = f" in place of {result.rows_deleted:,}" if result.rows_deleted else ""
    return f"{result.rows_inserted:,} {noun}{instead}"


def _spark_is_warm() -> bool:
    module = sys.modules.get("pyspark.sql")
    return module is not None and module.SparkSession.getActiveSession() is not None
