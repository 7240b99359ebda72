"""The graph around one pipeline, stream, workflow or table: a part of the graph that `flow web` shows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ematix_flow.errors import UnknownName, did_you_mean
from ematix_flow.mcp.tool_table import value_of
from ematix_flow.web.endpoints import Call, Handler
from ematix_flow.web.graph import GraphEndpoint
from ematix_flow.web.site import Site

MOST_STEPS = 50
Edge = Mapping[str, Any]


def lineage_tool() -> Handler:
    """A handler that keeps the graph of its module."""
    show_graph = GraphEndpoint()

    def show_lineage(site: Site, call: Call) -> dict[str, Any]:
        return _part_of(value_of(show_graph(site, call)), call)

    return show_lineage


def _part_of(graph: Mapping[str, Any], call: Call) -> dict[str, Any]:
    nodes = {node["id"]: node for node in graph["nodes"]}
    start = _find_node(nodes, call.required("name"))
    direction, steps = call.text("direction") or "both", call.number("steps", MOST_STEPS)
    upstream = {} if direction == "downstream" else _distances(graph["edges"], start, steps, "to", "from")
    downstream = {} if direction == "upstream" else _distances(graph["edges"], start, steps, "from", "to")
    found = {start, *upstream, *downstream}
    return {
        "node": nodes[start],
        "upstream": _by_distance(upstream),
        "downstream": _by_distance(downstream),
        "nodes": [node for id, node in nodes.items() if id in found],
        "edges": [edge for edge in graph["edges"] if edge["from"] in found and edge["to"] in found],
    }


def _find_node(nodes: Mapping[str, Any], name: str) -> str:
    """The id of a node by its name or its id. Pipelines come before tables of the same name."""
    if name in nodes:
        return name
    for kind in ("pipeline", "stream", "workflow", "table"):
        if f"{kind}:{name}" in nodes:
            return f"{kind}:{name}"
    names = [node["name"] for node in nodes.values()]
    raise UnknownName(
        f"there is no pipeline, stream, workflow or table {name[:200]!r}.{did_you_mean(name[:200], names)}",
        next_step="list_pipelines  and  list_streams  have the names, and those of their tables",
    )


def _distances(edges: Sequence[Edge], start: str, steps: int, near: str, far: str) -> dict[str, int]:
    """The nodes that can be reached from one, and in how many steps."""
    following: dict[str, list[str]] = {}
    for edge in edges:
        following.setdefault(edge[near], []).append(edge[far])
    found: dict[str, int] = {}
    reached: Iterable[str] = [start]
    for step in range(1, steps + 1):
        reached = dict.fromkeys(
            id for each in reached for id in following.get(each, ()) if id not in found and id != start
        )
        if not reached:
            break
        found |= dict.fromkeys(reached, step)
    return found


def _by_distance(found: Mapping[str, int]) -> list[dict[str, Any]]:
    return [{"id": id, "steps": steps} for id, steps in found.items()]
