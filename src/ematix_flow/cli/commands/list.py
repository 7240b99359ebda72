"""``flow list``: the pipelines that a module declares, batch and streaming."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ematix_flow.cli.drawing import draw_graph
from ematix_flow.cli.group import new_app
from ematix_flow.cli.options import ModuleOption, OutputOption
from ematix_flow.cli.output import Column, write_json, write_table, write_text
from ematix_flow.cli.project import load_project
from ematix_flow.cli.terminal import say

if TYPE_CHECKING:
    from ematix_flow.spec.pipelines import PipelineSpec
    from ematix_flow.spec.streams import StreamSpec

app = new_app()


@app.command("list")
def list_pipelines(
    module: ModuleOption = None,
    graph: Annotated[bool, typer.Option("--graph", help="Draw what runs after what.")] = False,
    output: OutputOption = "text",
) -> None:
    """Show the pipelines that a module declares: target, schedule, dependencies, place."""
    registry = load_project(module)
    specs = [declared.spec for declared in registry.pipelines.values()]
    streams = [declared.spec for declared in registry.streams.values()]
    if output == "json":
        write_json([*(_as_json(spec) for spec in specs), *(stream_as_json(spec) for spec in streams)])
        return
    if not specs and not streams:
        say("the module declares no pipeline")
        return
    if graph:
        upstreams = {spec.name: spec.depends_on for spec in specs}
        drawn = draw_graph(upstreams, {spec.name: f"→ {_targets(spec)}" for spec in specs})
        write_text("\n".join([*drawn, *(f"{_sources(s)} ⇝ {s.name}  → {_targets(s)}" for s in streams)]))
        return
    columns = (
        Column("pipeline"),
        Column("kind"),
        Column("loads", wraps=True),
        Column("schedule"),
        Column("depends on", wraps=True),
        Column("declared at", wraps=True),
    )
    write_table(columns, [*(_row(spec) for spec in specs), *(_stream_row(spec) for spec in streams)])


def _targets(spec: PipelineSpec | StreamSpec) -> str:
    return ", ".join(target.label for target in spec.targets)


def _sources(spec: StreamSpec) -> str:
    return ", ".join(source.label for source in spec.sources)


def loads_of(spec: PipelineSpec | StreamSpec) -> str:
    return ", ".join(f"{target.mode} → {target.label}" for target in spec.targets)


def _row(spec: PipelineSpec) -> tuple[object, ...]:
    schedule = f"{spec.schedule} {spec.timezone}" if spec.schedule and spec.timezone else spec.schedule
    upstreams = ", ".join(spec.depends_on)
    return spec.name, "pipeline", loads_of(spec), schedule or "by hand", upstreams, spec.where


def _stream_row(spec: StreamSpec) -> tuple[object, ...]:
    return spec.name, "stream", loads_of(spec), f"follows {_sources(spec)}", "", spec.where


def _as_json(spec: PipelineSpec) -> dict[str, Any]:
    return {
        "name": spec.name,
        "kind": "pipeline",
        "description": spec.description,
        "targets": [{"target": t.label, "mode": t.mode} for t in spec.targets],
        "schedule": spec.schedule,
        "timezone": spec.timezone,
        "depends_on": list(spec.depends_on),
        "incremental": spec.source.incremental,
        "where": str(spec.where) if spec.where else None,
    }


def stream_as_json(spec: StreamSpec) -> dict[str, Any]:
    return {
        "name": spec.name,
        "kind": "stream",
        "description": spec.description,
        "sources": [source.label for source in spec.sources],
        "targets": [{"target": t.label, "mode": t.mode} for t in spec.targets],
        "on_error": spec.on_error,
        "where": str(spec.where) if spec.where else None,
    }
