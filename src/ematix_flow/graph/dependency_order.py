"""Order and cycles of a dependency graph given as ``{name: its upstreams}``."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter


def find_cycle(edges: Mapping[str, Sequence[str]]) -> list[str] | None:
    """The names of one cycle, with the first repeated at the end, or None."""
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as error:
        # graphlib lists each node before the one that depends on it; the error shows "a → what a depends on"
        return list(reversed(error.args[1]))
    return None


def topological_order(edges: Mapping[str, Sequence[str]]) -> list[str]:
    """The names, upstreams first; otherwise in the order of declaration."""
    position = {name: i for i, name in enumerate(edges)}
    sorter = TopologicalSorter(edges)
    sorter.prepare()
    out: list[str] = []
    while sorter.is_active():
        ready = sorted(sorter.get_ready(), key=lambda n: position.get(n, len(position)))
        out.extend(ready)
        sorter.done(*ready)
    return out


def upstreams_within(
    edges: Mapping[str, Sequence[str]], names: Collection[str]
) -> dict[str, tuple[str, ...]]:
    """For each of the names, upstreams first: the names that it depends on, directly or indirectly."""
    nearest: dict[str, dict[str, None]] = {}
    for name in topological_order(edges):
        above: dict[str, None] = {}
        for upstream in edges.get(name, ()):
            above |= {upstream: None} if upstream in names else nearest.get(upstream, {})
        nearest[name] = above
    return {name: tuple(above) for name, above in nearest.items() if name in names}


def parallel_levels(upstreams: Mapping[str, Sequence[str]]) -> list[list[str]]:
    """The names in steps: those of one step may run in parallel. ``upstreams`` is the result of `within`."""
    step: dict[str, int] = {}
    out: list[list[str]] = []
    for name in topological_order(upstreams):
        step[name] = 1 + max((step[upstream] for upstream in upstreams[name]), default=-1)
        if step[name] == len(out):
            out.append([])
        out[step[name]].append(name)
    return out
