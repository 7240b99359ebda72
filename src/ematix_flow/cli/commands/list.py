"""``flow list``: shows the pipelines, streams and workflows that a module declares."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ematix_flow.cli.command_group import new_app
from ematix_flow.cli.graph_drawing import draw_graph
from ematix_flow.cli.options import ExcludeOption, ModuleOption, NamesArgument, OutputOption, SelectOption
from ematix_flow.cli.output import OutputColumn, write_json, write_table, write_text
from ematix_flow.cli.project import load_project, resolve_pipeline_filter
from ematix_flow.cli.terminal import say
from ematix_flow.graph.listing import pipeline_listing, stream_listing, workflow_listing
from ematix_flow.graph.trigger_text import pipeline_trigger_text, schedule_text, workflow_trigger_text

if TYPE_CHECKING:
    from ematix_flow.graph.registry import Registry
    from ematix_flow.spec.pipelines import PipelineSpec
    from ematix_flow.spec.streams import StreamSpec
    from ematix_flow.spec.workflows import WorkflowSpec

app = new_app()


@app.command("list")
def list_pipelines(
    names: NamesArgument = None,
    select: SelectOption = None,
    exclude: ExcludeOption = None,
    module: ModuleOption = None,
    graph: Annotated[bool, typer.Option("--graph", help="Draw the dependency graph.")] = False,
    output: OutputOption = "text",
) -> None:
    """Show the pipelines that a module declares: target, schedule, dependencies, location.

    With a selector, show only the matching batch pipelines and the workflows that run one of them.
    """
    registry = load_project(module)
    only = resolve_pipeline_filter(registry, names, select, exclude)
    specs = [d.spec for name, d in registry.pipelines.items() if only is None or name in only]
    streams = [declared.spec for declared in registry.streams.values()] if only is None else []
    workflows = [w for w in registry.workflows.values() if only is None or only.intersection(w.jobs)]
    if output == "json":
        write_json(
            [
                *(pipeline_listing(spec) for spec in specs),
                *(stream_listing(spec) for spec in streams),
                *(workflow_listing(spec) for spec in workflows),
            ]
        )
        return
    if not specs and not streams:
        say("the module declares no pipeline")
        return
    if graph:
        upstreams = {spec.name: spec.depends_on for spec in specs}
        drawn = draw_graph(upstreams, {spec.name: f"→ {_targets(spec)}" for spec in specs})
        drawn += [f"{_sources(s)} ⇝ {s.name}  → {_targets(s)}" for s in streams]
        drawn += [f"workflow {w.name} ({workflow_trigger_text(w)}): {', '.join(w.jobs)}" for w in workflows]
        write_text("\n".join(drawn))
        return
    columns = (
        OutputColumn("pipeline"),
        OutputColumn("kind"),
        OutputColumn("loads", wraps=True),
        OutputColumn("schedule"),
        OutputColumn("depends on", wraps=True),
        OutputColumn("declared at", wraps=True),
    )
    rows = [_row(spec, registry) for spec in specs] + [_stream_row(spec) for spec in streams]
    write_table(columns, rows + [_workflow_row(spec) for spec in workflows])


def _targets(spec: PipelineSpec | StreamSpec) -> str:
    return ", ".join(target.label for target in spec.targets)


def _sources(spec: StreamSpec) -> str:
    return ", ".join(source.label for source in spec.sources)


def loads_text(spec: PipelineSpec | StreamSpec) -> str:
    return ", ".join(f"{target.mode} → {target.label}" for target in spec.targets)


def _row(spec: PipelineSpec, registry: Registry) -> tuple[object, ...]:
    upstreams = ", ".join(spec.depends_on)
    return (
        spec.name,
        "pipeline",
        loads_text(spec),
        pipeline_trigger_text(spec, registry),
        upstreams,
        spec.where,
    )


def _workflow_row(spec: WorkflowSpec) -> tuple[object, ...]:
    after = str(spec.triggered_by or "")
    return spec.name, "workflow", f"runs {', '.join(spec.jobs)}", schedule_text(spec), after, spec.where


def _stream_row(spec: StreamSpec) -> tuple[object, ...]:
    return spec.name, "stream", loads_text(spec), f"follows {_sources(spec)}", "", spec.where
