"""Shows the current step of a command without row counts: a spinner in a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ematix_flow.cli.terminal import is_terminal, say


@contextmanager
def show_steps() -> Iterator[Callable[[str], None]]:
    """Yields a function that shows a step. A terminal shows the current step with its time."""
    if not is_terminal(sys.stderr):
        yield lambda step: say(f"  {step} …")
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    shown = Progress(*columns, console=Console(file=sys.stderr, highlight=False), transient=True)

    def at(step: str) -> None:
        for task in shown.task_ids:
            shown.remove_task(task)
        shown.add_task(step, total=None)

    with shown:
        yield at
