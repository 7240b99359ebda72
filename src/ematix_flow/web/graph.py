"""The endpoint of the graph: what is declared, what connects it, and the state of each part.

Nodes and edges follow from the declarations, so they are made once. Only the states are read again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ematix_flow.graph.registry import Registry
from ematix_flow.schedule.status import workflow_statuses
from ematix_flow.spec.pipelines import connection_label
from ematix_flow.web.answers import Answer, plain_json_bytes
from ematix_flow.web.endpoints import Call
from ematix_flow.web.site import Site
from ematix_probe.redaction import mask, mask_all


@dataclass(frozen=True)
class Graph:
    """Nodes and edges, each once. ``loaded_by`` are the pipelines and streams that load a table."""

    nodes: dict[str, dict[str, str]] = field(default_factory=dict)
    edges: dict[tuple[str, str, str], dict[str, str]] = field(default_factory=dict)
    loaded_by: dict[str, list[str]] = field(default_factory=dict)

    @classmethod
    def of(cls, registry: Registry) -> Graph:
        made = cls()
        for name, declared in registry.pipelines.items():
            spec, id = declared.spec, made.add_node("pipeline", name)
            for target in spec.targets:
                made.add_load(id, target.label)
            if spec.source.table is not None:
                connection = connection_label(spec.source.connection or spec.targets[0].connection)
                made.add_edge(made.add_node("table", f"{connection}:{spec.source.table}"), id, "reads")
            for upstream in spec.depends_on:
                made.add_edge(made.add_node("pipeline", upstream), id, "depends_on")
        for name, stream in registry.streams.items():
            id = made.add_node("stream", name)
            for source in stream.spec.sources:
                made.add_edge(made.add_node("table", source.label), id, "reads")
            for stream_target in stream.spec.targets:
                made.add_load(id, stream_target.label)
        for workflow in registry.workflows.values():
            id = made.add_node("workflow", workflow.name)
            for job in workflow.jobs:
                made.add_edge(id, made.add_node("pipeline", job), "runs")
            for name in workflow.triggered_by.names() if workflow.triggered_by else ():
                kind = "workflow" if name in registry.workflows else "pipeline"
                made.add_edge(made.add_node(kind, name), id, "triggers")
        return made

    def add_node(self, kind: str, name: str) -> str:
        """Add a node unless it is there, and return its id."""
        id = f"{kind}:{name}"
        self.nodes.setdefault(id, {"id": mask(id), "kind": kind, "name": mask(name)})
        return id

    def add_edge(self, start: str, end: str, kind: str) -> None:
        self.edges.setdefault((start, end, kind), mask_all({"from": start, "to": end, "kind": kind}))

    def add_load(self, loader: str, label: str) -> None:
        table = self.add_node("table", label)
        self.add_edge(loader, table, "loads")
        self.loaded_by.setdefault(table, []).append(loader)


class GraphEndpoint:
    """Answers with the graph of one server's module."""

    def __init__(self) -> None:
        self._graph: Graph | None = None
        self._edges = b""

    def __call__(self, site: Site, call: Call) -> Answer:
        graph = self._graph
        if graph is None:
            graph = Graph.of(site.registry)
            self._edges = plain_json_bytes(list(graph.edges.values()))
            self._graph = graph
        states = _states(site)
        for table, loaders in graph.loaded_by.items():
            states[table] = next((states[each] for each in loaders if each in states), (None, None))
        nodes: list[dict[str, Any]] = []
        for id, node in graph.nodes.items():
            state, detail = states.get(id, (None, None))
            nodes.append({**node, "state": state, "detail": None if id in graph.loaded_by else detail})
        body = b'{"nodes":' + plain_json_bytes(nodes) + b',"edges":' + self._edges + b"}"
        return Answer(None, body=body)


def _states(site: Site) -> dict[str, tuple[str | None, str | None]]:
    """The state of each node, and a masked sentence about it."""
    states: dict[str, tuple[str | None, str | None]] = {
        f"pipeline:{name}": (view.state, view.value["why"]) for name, view in site.overview.views().items()
    }
    streams = list(site.registry.streams)
    recent = site.stores.run_log().recent(streams, 1) if streams else {}
    for name in streams:
        runs = recent.get(name)
        states[f"stream:{name}"] = (runs[0].status if runs else "never", None)
    if site.registry.workflows:
        slots = site.stores.slots()
        for status in workflow_statuses(site.registry, None, slots, site.stores.run_log(), slots.now()):
            states[f"workflow:{status.spec.name}"] = (status.outcome, mask(status.why) or None)
    return states
