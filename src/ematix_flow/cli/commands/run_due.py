"""``flow run-due``: what the schedules have fired, each slot once."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ematix_flow.cli.group import new_app
from ematix_flow.cli.moments import local
from ematix_flow.cli.options import EngineOption, ModuleOption, OutputOption, RunLogOption
from ematix_flow.cli.output import Column, count, status_column, write_json, write_table
from ematix_flow.cli.project import load_project
from ematix_flow.cli.slots import slot_runner
from ematix_flow.cli.terminal import say
from ematix_flow.cli.watching import choose_view

if TYPE_CHECKING:
    from ematix_flow.schedule.run_due import SlotOutcome

app = new_app()

_COLUMNS = (
    Column("pipeline"),
    Column("slot"),
    status_column(),
    Column("inserted", right=True),
    Column("reason", wraps=True),
)


@app.command(name="run-due")
def run_due(
    module: ModuleOption = None,
    interval: Annotated[
        float,
        typer.Option(
            "--interval",
            metavar="SECONDS",
            help="How far back a pipeline that never fired looks, and what catchup=none calls missed.",
        ),
    ] = 60.0,
    lease_seconds: Annotated[
        float,
        typer.Option("--lease-seconds", help="After how long without a word a run counts as dead."),
    ] = 300.0,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only errors and the result.")] = False,
    run_log: RunLogOption = None,
    engine: EngineOption = None,
    output: OutputOption = "text",
) -> int:
    """Run what is due, upstreams first. Safe to call as often as you like, from several machines at once."""
    from ematix_flow.cli.signals import interruptible

    registry = load_project(module)
    view = choose_view(list(registry.pipelines), quiet=quiet, show_plans=False)
    with (
        view.shown(),
        interruptible(),
        slot_runner(registry, run_log, engine, view, lease_seconds, "schedule") as runner,
    ):
        outcomes = runner.run_due(dt.timedelta(seconds=interval), after=view.slot_finished)
    _show(outcomes, output)
    return 1 if any(outcome.error is not None for outcome in outcomes) else 0


def _show(outcomes: list[SlotOutcome], output: str) -> None:
    if output == "json":
        write_json([_json(outcome) for outcome in outcomes])
    elif not outcomes:
        say("nothing is due")
    else:
        write_table(_COLUMNS, [_row(outcome) for outcome in outcomes])


def _row(outcome: SlotOutcome) -> tuple[object, ...]:
    inserted = count(outcome.result.rows_inserted) if outcome.result else ""
    return outcome.slot.pipeline, local(outcome.slot.at), outcome.status, inserted, outcome.reason or ""


def _json(outcome: SlotOutcome) -> dict[str, Any]:
    return {
        "pipeline": outcome.slot.pipeline,
        "slot": outcome.slot.at.isoformat(),
        "status": outcome.status,
        "reason": outcome.reason,
        "result": outcome.result.to_json() if outcome.result else None,
    }
