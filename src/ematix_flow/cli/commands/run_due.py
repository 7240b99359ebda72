"""``flow run-due``: what the schedules have fired, each slot once."""

from __future__ import annotations

import datetime as dt
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ematix_flow.cli.group import new_app
from ematix_flow.cli.moments import local, zone_name
from ematix_flow.cli.options import (
    AlerterOption,
    EngineOption,
    ExcludeOption,
    MetricsOption,
    ModuleOption,
    NamesArgument,
    OutputOption,
    RunLogOption,
    SelectOption,
    TracesOption,
    WorkersOption,
)
from ematix_flow.cli.output import Column, count, status_column, write_json, write_table
from ematix_flow.cli.project import load_project, narrowed
from ematix_flow.cli.results import unsaid_reason
from ematix_flow.cli.slots import slot_foreseer, slot_runner, warn_of_missing_drivers
from ematix_flow.cli.starts import fired_by
from ematix_flow.cli.terminal import say
from ematix_flow.cli.watching import choose_view

if TYPE_CHECKING:
    from ematix_flow.graph.registry import Registry
    from ematix_flow.schedule.run_due import SlotOutcome
    from ematix_flow.state.slots import Slot

app = new_app()


@app.command(name="run-due")
def run_due(
    names: NamesArgument = None,
    select: SelectOption = None,
    exclude: ExcludeOption = None,
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
    workers: WorkersOption = 1,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what is due and why, and what would be skipped.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only errors; no table.")] = False,
    require_run_log: Annotated[
        bool,
        typer.Option("--require-run-log", help="Run nothing when the run log cannot be used."),
    ] = False,
    alerter: AlerterOption = None,
    metrics: MetricsOption = None,
    traces: TracesOption = None,
    run_log: RunLogOption = None,
    engine: EngineOption = None,
    output: OutputOption = "text",
) -> int:
    """Run what is due, all or what is named, upstreams first.

    Safe to call as often as you like, from several machines at once: a slot runs once.
    """
    from ematix_flow.cli.signals import interruptible
    from ematix_flow.errors import UsageError
    from ematix_flow.observe.settings import Observability
    from ematix_flow.schedule.slots import told_held

    for name, seconds in (("--interval", interval), ("--lease-seconds", lease_seconds)):
        if not 0 < seconds < float("inf"):
            raise UsageError(f"{name} takes a number of seconds above 0, not {seconds:g}")
    watching = Observability.resolve(os.environ, alerter or (), metrics, traces)
    registry = load_project(module)
    only = narrowed(registry, names, select, exclude)
    if dry_run:
        _foretell(registry, only, run_log, dt.timedelta(seconds=interval), output)
        return 0
    shown = list(registry.pipelines if only is None else only)
    warn_of_missing_drivers(registry, shown)
    view = choose_view(shown, quiet=quiet)
    with (
        view.shown(),
        interruptible(),
        slot_runner(
            registry,
            run_log,
            engine,
            view,
            lease_seconds,
            "schedule",
            watching,
            stand_in=not require_run_log,
        ) as runner,
    ):
        chosen = replace(runner, only=only)
        outcomes = chosen.run_due(dt.timedelta(seconds=interval), after=view.slot_finished, workers=workers)
        held = [] if outcomes else chosen.held(chosen.names)
    for record in held if not quiet else ():
        say(f"{record.slot.pipeline}: {told_held(record)}")
    if not quiet or output == "json":
        _show(outcomes, output, "nothing else is due" if held else "nothing is due")
    return exit_code(outcomes)


def _foretell(
    registry: Registry,
    only: frozenset[str] | None,
    run_log: str | None,
    interval: dt.timedelta,
    output: str,
) -> None:
    from ematix_flow.schedule.foresight import foresee

    with slot_foreseer(registry, run_log) as runner:
        found = foresee(replace(runner, only=only), interval)
    if output == "json":
        write_json([each.to_json() for each in found])
        return
    if found:
        columns = (
            Column("pipeline"),
            Column(f"slot ({zone_name()})"),
            Column("would"),
            Column("why", wraps=True),
        )
        rows = [
            (each.slot.pipeline, local(each.slot.at), each.would, each.why or _fired(each.slot, registry))
            for each in found
        ]
        write_table(columns, rows)
    say("dry run: nothing was run, and nothing was changed" if found else "nothing is due")


def _fired(slot: Slot, registry: Registry) -> str:
    return f"fired by {fired_by(registry.pipelines[slot.pipeline].spec, registry)}"


def exit_code(outcomes: list[SlotOutcome]) -> int:
    """The code that all errors have in common, as when every pipeline was locked; else 1 for any."""
    codes = {outcome.error.exit_code for outcome in outcomes if outcome.error is not None}
    return codes.pop() if len(codes) == 1 else int(bool(codes))


def _show(outcomes: list[SlotOutcome], output: str, nothing: str) -> None:
    if output == "json":
        write_json([_json(outcome) for outcome in outcomes])
    elif not outcomes:
        say(nothing)
    else:
        columns = (
            Column("pipeline"),
            Column(f"slot ({zone_name()})"),
            status_column(),
            Column("inserted", right=True),
            Column("reason", wraps=True),
        )
        write_table(columns, [_row(outcome) for outcome in outcomes])


def _row(outcome: SlotOutcome) -> tuple[object, ...]:
    inserted = count(outcome.result.rows_inserted) if outcome.result else ""
    status = outcome.status.replace("_", " ")
    return outcome.slot.pipeline, local(outcome.slot.at), status, inserted, unsaid_reason(outcome)


def _json(outcome: SlotOutcome) -> dict[str, Any]:
    return {
        "pipeline": outcome.slot.pipeline,
        "slot": outcome.slot.at.isoformat(),
        "status": outcome.status,
        "reason": outcome.reason,
        "result": outcome.result.to_json() if outcome.result else None,
    }
