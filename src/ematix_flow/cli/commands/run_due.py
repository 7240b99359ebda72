"""``flow run-due``: runs the slots that are due, each once."""

from __future__ import annotations

import datetime as dt
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ematix_flow.cli.command_group import new_app
from ematix_flow.cli.local_time import format_local_time, local_zone_name
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
from ematix_flow.cli.output import OutputColumn, format_count, status_column, write_json, write_table
from ematix_flow.cli.project import load_project, resolve_pipeline_filter
from ematix_flow.cli.results import reason_for_table
from ematix_flow.cli.run_views import choose_view
from ematix_flow.cli.slot_runners import dry_run_slot_runner, slot_runner, warn_of_missing_drivers
from ematix_flow.cli.terminal import say
from ematix_flow.graph.trigger_text import pipeline_trigger_text

if TYPE_CHECKING:
    from ematix_flow.graph.registry import Registry
    from ematix_flow.schedule.run_due import SlotOutcome
    from ematix_flow.state.slots.base import Slot

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
            help="The time between two calls. It is how far back the first slot of a pipeline may be, "
            "and catchup=none skips slots that are older.",
        ),
    ] = 60.0,
    lease_seconds: Annotated[
        float,
        typer.Option("--lease-seconds", help="After how long without a heartbeat a run counts as dead."),
    ] = 300.0,
    workers: WorkersOption = 1,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show which slots are due and which would be skipped.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only errors; no table.")] = False,
    require_run_log: Annotated[
        bool,
        typer.Option("--require-run-log", help="Run nothing if the run log cannot be used."),
    ] = False,
    alerter: AlerterOption = None,
    metrics: MetricsOption = None,
    traces: TracesOption = None,
    run_log: RunLogOption = None,
    engine: EngineOption = None,
    output: OutputOption = "text",
) -> int:
    """Run the slots that are due, of all pipelines or of the named ones, upstreams first.

    You can call it as often as you like, from several machines at once: each slot runs once.
    """
    from ematix_flow.cli.signals import interruptible
    from ematix_flow.errors import UsageError
    from ematix_flow.observe.settings import Observability
    from ematix_flow.schedule.slot_lifecycle import describe_holder

    for name, seconds in (("--interval", interval), ("--lease-seconds", lease_seconds)):
        if not 0 < seconds < float("inf"):
            raise UsageError(f"{name} takes a number of seconds above 0, not {seconds:g}")
    watching = Observability.resolve(os.environ, alerter or (), metrics, traces)
    registry = load_project(module)
    only = resolve_pipeline_filter(registry, names, select, exclude)
    if dry_run:
        _show_dry_run(registry, only, run_log, dt.timedelta(seconds=interval), output)
        return 0
    shown = list(registry.pipelines if only is None else only)
    warn_of_missing_drivers(registry, shown)
    view = choose_view(shown, quiet=quiet)
    with (
        view.display(),
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
        held = [] if outcomes else chosen.held_slots(chosen.names)
    for record in held if not quiet else ():
        say(f"{record.slot.pipeline}: {describe_holder(record)}")
    if not quiet or output == "json":
        _show_outcomes(outcomes, output, "nothing else is due" if held else "nothing is due")
    return exit_code(outcomes)


def _show_dry_run(
    registry: Registry,
    only: frozenset[str] | None,
    run_log: str | None,
    interval: dt.timedelta,
    output: str,
) -> None:
    from ematix_flow.schedule.run_due_preview import predict_due_runs

    with dry_run_slot_runner(registry, run_log) as runner:
        found = predict_due_runs(replace(runner, only=only), interval)
    if output == "json":
        write_json([each.to_json() for each in found])
        return
    if found:
        columns = (
            OutputColumn("pipeline"),
            OutputColumn(f"slot ({local_zone_name()})"),
            OutputColumn("would"),
            OutputColumn("why", wraps=True),
        )
        rows = [
            (
                each.slot.pipeline,
                format_local_time(each.slot.fire_time),
                each.would,
                each.why or _trigger_text(each.slot, registry),
            )
            for each in found
        ]
        write_table(columns, rows)
    say("dry run: nothing was run, and nothing was changed" if found else "nothing is due")


def _trigger_text(slot: Slot, registry: Registry) -> str:
    return f"fired by {pipeline_trigger_text(registry.pipelines[slot.pipeline].spec, registry)}"


def exit_code(outcomes: list[SlotOutcome]) -> int:
    """The exit code that all errors share, such as 4 when every pipeline was locked; else 1."""
    codes = {outcome.error.exit_code for outcome in outcomes if outcome.error is not None}
    return codes.pop() if len(codes) == 1 else int(bool(codes))


def _show_outcomes(outcomes: list[SlotOutcome], output: str, nothing: str) -> None:
    if output == "json":
        write_json([_as_json(outcome) for outcome in outcomes])
    elif not outcomes:
        say(nothing)
    else:
        columns = (
            OutputColumn("pipeline"),
            OutputColumn(f"slot ({local_zone_name()})"),
            status_column(),
            OutputColumn("inserted", right=True),
            OutputColumn("reason", wraps=True),
        )
        write_table(columns, [_outcome_row(outcome) for outcome in outcomes])


def _outcome_row(outcome: SlotOutcome) -> tuple[object, ...]:
    inserted = format_count(outcome.result.rows_inserted) if outcome.result else ""
    status = outcome.status.replace("_", " ")
    return (
        outcome.slot.pipeline,
        format_local_time(outcome.slot.fire_time),
        status,
        inserted,
        reason_for_table(outcome),
    )


def _as_json(outcome: SlotOutcome) -> dict[str, Any]:
    return {
        "pipeline": outcome.slot.pipeline,
        "slot": outcome.slot.fire_time.isoformat(),
        "status": outcome.status,
        "reason": outcome.reason,
        "result": outcome.result.to_json() if outcome.result else None,
    }
