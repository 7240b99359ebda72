"""``flow run``: runs pipelines now, upstreams first, and records each run."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from typing import Annotated

import typer

from ematix_flow.cli.command_group import new_app
from ematix_flow.cli.options import (
    AlerterOption,
    AllOption,
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
from ematix_flow.cli.project import load_project, resolve_pipelines
from ematix_flow.cli.results import exit_code, write_outcomes
from ematix_flow.cli.run_views import choose_view
from ematix_flow.cli.terminal import say
from ematix_flow.spec.pipelines import ForcedPath

app = new_app()


@app.command()
def run(
    names: NamesArgument = None,
    everything: AllOption = False,
    select: SelectOption = None,
    exclude: ExcludeOption = None,
    module: ModuleOption = None,
    with_upstream: Annotated[
        bool, typer.Option("--with-upstream", help="First run the upstreams of the named pipelines.")
    ] = False,
    workers: WorkersOption = 1,
    plan: Annotated[bool, typer.Option("--plan", help="Show each plan before it runs.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Do everything except the commit; the same as flow dry-run.")
    ] = False,
    allow_empty: Annotated[
        bool, typer.Option("--allow-empty", help="For this run, let an empty source empty a truncate target.")
    ] = False,
    max_shrink: Annotated[
        float | None,
        typer.Option(
            "--max-shrink",
            metavar="SHARE",
            help="For this run, the fraction of a truncate target's rows that may vanish, from 0 to 1.",
        ),
    ] = None,
    force_path: Annotated[
        ForcedPath | None,
        typer.Option("--force-path", help="Use this path instead of the planner's choice."),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only errors; no table.")] = False,
    alerter: AlerterOption = None,
    metrics: MetricsOption = None,
    traces: TracesOption = None,
    run_log: RunLogOption = None,
    engine: EngineOption = None,
    output: OutputOption = "text",
) -> int:
    """Run pipelines now, upstreams first. A failure only stops the pipelines that depend on it."""
    from ematix_flow.cli.dry_runs import dry_run_all
    from ematix_flow.cli.overrides import with_overrides
    from ematix_flow.cli.signals import interruptible
    from ematix_flow.errors import Interrupted
    from ematix_flow.observe.settings import Observability
    from ematix_flow.run.context_setup import run_context
    from ematix_flow.run.dag import run_dag
    from ematix_flow.run.driver_checks import missing_drivers

    watching = Observability.resolve(os.environ, alerter or (), metrics, traces)
    declared = load_project(module)
    chosen = resolve_pipelines(
        declared,
        names,
        everything=everything,
        select=select,
        exclude=exclude,
        with_upstream=with_upstream,
    )
    registry = with_overrides(
        declared, chosen, allow_empty=allow_empty or None, max_shrink=max_shrink, force_path=force_path
    )
    for missing in missing_drivers(declared, chosen):
        missing.state = "nothing was run"
        raise missing
    view = choose_view(chosen, quiet=quiet, show_plans=plan)
    with view.display(), interruptible():
        if dry_run:
            outcomes = dry_run_all(registry, chosen, engine, view)
        else:
            try:
                with run_context(
                    run_log=run_log, engine=engine, listener=view, trigger="cli", observability=watching
                ) as context:
                    outcomes = run_dag(
                        registry, chosen, context, before=view.started, after=view.finished, workers=workers
                    )
            except Interrupted as stopped:
                if len(chosen) > 1:
                    if output == "text" and not quiet:
                        write_outcomes(view.outcomes_after_interrupt(), registry, as_json=False)
                    again = _selection_command(names, everything, select, exclude, module, with_upstream)
                    stopped.next_step = f"{again}  runs all of them again"
                raise
    if not quiet or output == "json":
        write_outcomes(outcomes, registry, as_json=output == "json")
    if dry_run and not quiet:
        say("dry run: nothing was changed")
    return exit_code(outcomes)


def _selection_command(
    names: Sequence[str] | None,
    everything: bool,
    select: Sequence[str] | None,
    exclude: Sequence[str] | None,
    module: str | None,
    with_upstream: bool,
) -> str:
    """The command line that selects the same pipelines again."""
    words = ["flow", "run", *(names or ())]
    words += ["--all"] * everything
    words += [word for each in select or () for word in ("--select", each)]
    words += [word for each in exclude or () for word in ("--exclude", each)]
    words += ["--with-upstream"] * with_upstream
    words += ["--module", module] if module else []
    return shlex.join(words)
