"""Runs the demo: writes the project, runs it, changes the source, runs it again and shows the results.

Everything runs in this process, through the same functions as ``flow run``, in one Spark session.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from ematix_flow.cli.graph_drawing import draw_graph
from ematix_flow.cli.results import outcome_json, outcome_table
from ematix_flow.cli.scaffolds import changed_templates, write_scaffold
from ematix_flow.cli.scaffolds.shop import shop_data
from ematix_flow.cli.demo.expected_outcomes import FIRST_ROUND, SECOND_ROUND, REASONS, unexpected_outcomes
from ematix_flow.cli.demo.views import DemoLineView, DemoLiveView
from ematix_flow.cli.terminal import is_terminal, style_text, write
from ematix_flow.errors import UsageError
from ematix_flow.graph.registry import Registry, use_registry

if TYPE_CHECKING:
    from ematix_flow.run.dag import PipelineOutcome

_SCAFFOLD = {"shop": ("pipelines.py.txt", "shop_data.py", "project.toml", "gitignore", "README.md")}
_DATA_FILES = ("shop.db", "warehouse.duckdb", "warehouse.duckdb.wal", "lake", "run_log.db", ".ematix_flow")


class Demo:
    """One demo. After ``run``, ``rounds`` holds the outcomes of both rounds."""

    def __init__(self, folder: Path, *, force: bool, engine: str | None, stream: TextIO) -> None:
        self.folder, self.force, self.engine, self.stream = folder, force, engine, stream
        self.rounds: list[list[PipelineOutcome]] = []
        self.surprises: list[str] = []
        self.row_counts: dict[str, int] = {}

    @property
    def went_as_planned(self) -> bool:
        return not self.surprises and len(self.rounds) == 2

    def to_json(self) -> dict[str, Any]:
        return {
            "folder": str(self.folder.resolve()),
            "rounds": [[outcome_json(outcome) for outcome in outcomes] for outcomes in self.rounds],
            "landed": self.row_counts,
            "as_planned": self.went_as_planned,
            "surprises": self.surprises,
        }

    def run(self) -> None:
        started = time.monotonic()
        self._write_project()
        with _working_directory(self.folder), use_registry(Registry()):
            shop_data.create()
            from ematix_flow.graph.module_loading import load_module

            registry = load_module("pipelines.py")
            self._introduce(registry)
            self._write_heading("Round 1: everything is new")
            self._run_round(registry, FIRST_ROUND)
            self._change_source()
            self._write_heading("Round 2: only what changed")
            self._run_round(registry, SECOND_ROUND)
            self._explain_outcomes()
            self._show_row_counts(registry)
        self._show_next_steps(time.monotonic() - started)

    # ------------------------------------------------------------------ before

    def _write_project(self) -> None:
        """Write the project. It replaces an earlier unchanged demo; other files only with ``force``."""
        again = f"choose another --dir, or replace it with  {_flow_command()} demo --dir {self.folder} --force"
        changed = changed_templates(_SCAFFOLD, self.folder)
        data = [name for name in _DATA_FILES if (self.folder / name).exists()]
        ours = (self.folder / "shop_data.py").exists()
        if not self.force and (changed or (data and not ours)):
            raise UsageError(
                f"{self.folder} already has other files: {', '.join(changed or data)}",
                state="nothing was changed",
                next_step=again,
            )
        for name in data:
            left = self.folder / name
            if left.is_dir() and not left.is_symlink():
                shutil.rmtree(left)
            else:
                left.unlink()
        write_scaffold(_SCAFFOLD, self.folder, force=True, next_step=again)

    def _introduce(self, registry: Registry) -> None:
        self._write_heading("A small shop")
        self._write(
            f"The folder {self.folder} now holds a project:\n"
            "  shop.db            the source, a SQLite file: "
            f"{shop_data.ORDERS:,} orders, {shop_data.CUSTOMERS:,} customers\n"
            "  pipelines.py       eight pipelines, short enough to read\n"
            "  warehouse.duckdb   the target of most pipelines\n"
            "  lake/              the target for Parquet files\n\n"
            "The order of the pipelines:"
        )
        upstreams = {name: declared.spec.depends_on for name, declared in registry.pipelines.items()}
        notes = {
            name: f"{declared.spec.targets[0].mode} → {declared.spec.targets[0].label}"
            for name, declared in registry.pipelines.items()
        }
        self._write("\n".join(f"  {line}" for line in draw_graph(upstreams, notes)))

    # ------------------------------------------------------------------ a round

    def _run_round(self, registry: Registry, expected: dict[str, str]) -> None:
        from ematix_flow.run.context_setup import run_context
        from ematix_flow.run.dag import run_dag

        names = registry.dependency_order()
        kind = DemoLiveView if is_terminal(self.stream) else DemoLineView
        view = kind(names, stream=self.stream)
        with (
            view.display(),
            run_context(engine=self.engine, listener=view, trigger="demo") as context,
        ):
            outcomes = run_dag(registry, names, context, before=view.started, after=view.finished)
        self.rounds.append(outcomes)
        self.surprises += unexpected_outcomes(outcomes, expected)
        self._write("\n" + outcome_table(outcomes, registry, stream=self.stream))

    def _change_source(self) -> None:
        shop_data.change()
        self._write_heading("Meanwhile in the shop")
        self._write(
            f"  {shop_data.NEW_ORDERS} new orders\n"
            f"  {shop_data.NEW_CUSTOMERS} new customers, {shop_data.CHANGED_CUSTOMERS} changed ones\n"
            f"  {shop_data.NEW_PAYMENTS} new payments, one of them in {shop_data.BAD_CURRENCY!r}, "
            "which the table does not accept\n"
            "  no return"
        )

    # ------------------------------------------------------------------ after

    def _explain_outcomes(self) -> None:
        self._write("")
        for name, why in REASONS.items():
            self._write(f"  {name:<12}{why}")
        for surprise in self.surprises:
            self._write(style_text(f"  not as planned: {surprise}", "bold red", self.stream))

    def _show_row_counts(self, registry: Registry) -> None:
        self._write_heading("Rows in each target")
        notes = {}
        for name, declared in registry.pipelines.items():
            target = declared.spec.targets[0]
            rows = self.row_counts[name] = self._count_rows(name, registry)
            notes[name] = f"{rows:>7,} rows in {target.label}"
        upstreams = {name: declared.spec.depends_on for name, declared in registry.pipelines.items()}
        self._write("\n".join(f"  {line}" for line in draw_graph(upstreams, notes)))

    def _count_rows(self, name: str, registry: Registry) -> int:
        """The rows in the target itself, not the counts that the runs reported."""
        from ematix_flow.cli.demo.row_counts import count_rows

        return count_rows(registry.pipelines[name].spec.targets[0])

    def _show_next_steps(self, seconds: float) -> None:
        flow = _flow_command()
        python = "python" if shutil.which("python") else sys.executable
        steps = {
            f"cd {self.folder}": "",
            f"{flow} status": "the state of each pipeline",
            f"{flow} runs list": "every run, with its error",
            f"{flow} web --open": "the same as a page",
            f"{flow} plan orders": "what a run would do now",
            f"{python} shop_data.py fix": "correct the payment that did not fit …",
            f"{flow} run payments daily_cash": "… and load it",
            f"{flow} run --all": "nothing is loaded twice",
        }
        self._write_heading("What to try next")
        width = max(len(step) for step in steps)
        lines = (
            f"  {step:<{width}}   {style_text(why, 'dim', self.stream)}".rstrip() for step, why in steps.items()
        )
        self._write("\n".join(lines))
        end = "as planned, the failure included" if self.went_as_planned else "not as planned"
        self._write(f"\nThe demo went {end}, in {seconds:.0f} seconds.")

    # ------------------------------------------------------------------

    def _write_heading(self, text: str) -> None:
        self._write(
            "\n" + style_text(f"── {text} " + "─" * max(0, 74 - len(text)), "bold cyan", self.stream) + "\n"
        )

    def _write(self, text: str) -> None:
        write(text, self.stream)


@contextlib.contextmanager
def _working_directory(folder: Path) -> Iterator[None]:
    """Make the folder the working directory within the block, as for a user who runs flow there."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def _flow_command() -> str:
    """The command that calls flow again: its name if the shell finds it, else its path."""
    called = sys.argv[0]
    found = shutil.which("flow")
    if found is None or not os.path.exists(called) or not os.path.samefile(found, called):
        return os.path.abspath(called) if os.path.basename(called) == "flow" else "flow"
    return "flow"
