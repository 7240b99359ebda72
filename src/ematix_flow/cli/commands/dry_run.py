"""``flow dry-run``: does everything except the commit."""

from __future__ import annotations

from ematix_flow.cli.command_group import new_app
from ematix_flow.cli.options import (
    AllOption,
    EngineOption,
    ExcludeOption,
    ModuleOption,
    NamesArgument,
    OutputOption,
    SelectOption,
)
from ematix_flow.cli.project import load_project, resolve_pipelines
from ematix_flow.cli.results import exit_code, write_outcomes
from ematix_flow.cli.run_views import choose_view
from ematix_flow.cli.terminal import say

app = new_app()


@app.command("dry-run")
def dry_run(
    names: NamesArgument = None,
    everything: AllOption = False,
    select: SelectOption = None,
    exclude: ExcludeOption = None,
    module: ModuleOption = None,
    engine: EngineOption = None,
    output: OutputOption = "text",
) -> int:
    """Do everything except the commit, and count the rows. Changes no target, records no run."""
    from ematix_flow.cli.dry_runs import dry_run_all
    from ematix_flow.cli.signals import interruptible

    registry = load_project(module)
    chosen = resolve_pipelines(registry, names, everything=everything, select=select, exclude=exclude)
    view = choose_view(chosen)
    with view.display(), interruptible():
        outcomes = dry_run_all(registry, chosen, engine, view)
    write_outcomes(outcomes, registry, as_json=output == "json")
    say("dry run: nothing was changed")
    return exit_code(outcomes)
