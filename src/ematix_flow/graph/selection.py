"""Selects pipelines for a command, with the selector syntax of dbt.

``orders`` is a name, ``orders_*`` a pattern; ``tag:nightly``, ``workflow:nightly``, ``source:shop`` and
``target:warehouse`` select by an attribute. ``+orders`` adds all its upstreams, ``orders+`` all its
downstreams, ``2+orders+1`` only that many steps; ``@orders`` adds its downstreams and all their upstreams.
A space unites selections, a comma intersects them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

from ematix_flow.errors import FlowError, UnknownName, UsageError, did_you_mean
from ematix_flow.graph.registry import Registry
from ematix_flow.spec.pipelines import PipelineSpec, connection_label

_ATOM = re.compile(r"(?P<at>@)?(?:(?P<up>\d*)\+)?(?P<what>[^@+].*?)(?:\+(?P<down>\d*))?")
_HELP = (
    "a selector is a name, a pattern such as orders_*, or tag:, workflow:, source: or target: and a name; "
    "+ before it adds its upstreams, + after it adds its downstreams"
)


def select(
    registry: Registry,
    wanted: Sequence[str],
    excluded: Sequence[str] = (),
    *,
    with_upstream: bool = False,
) -> list[str]:
    """The names that the selectors match, upstreams first. A selector that matches nothing is an error."""
    selector = Selector(registry)
    chosen = selector.select(wanted)
    if with_upstream:
        chosen |= selector.upstreams_of(chosen)
    left = chosen - selector.select(excluded)
    if chosen and not left:
        raise UsageError(f"--exclude {' '.join(excluded)} excludes everything that is selected")
    return registry.dependency_order(list(left))


class Selector:
    """Selectors over one registry."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._specs = {name: declared.spec for name, declared in registry.pipelines.items()}
        self._upstreams: dict[str, Sequence[str]] = {
            name: spec.depends_on for name, spec in self._specs.items()
        }
        self._downstreams: dict[str, list[str]] = {name: [] for name in self._specs}
        for name, upstreams in self._upstreams.items():
            for upstream in upstreams:
                self._downstreams.setdefault(upstream, []).append(name)

    def select(self, texts: Iterable[str]) -> set[str]:
        """The names that any of the selectors matches."""
        found: set[str] = set()
        for text in texts:
            # a declared name is always a name, even if it contains spaces or commas
            parts = [text] if text in self._specs else text.split()
            if not parts:
                raise UsageError("a selector is empty", next_step=_HELP)
            found.update(name for part in parts for name in self._select_intersection(part))
        return found

    def upstreams_of(self, names: Iterable[str]) -> set[str]:
        """All upstreams of the names."""
        return _reachable(names, self._upstreams, None)

    def _select_intersection(self, text: str) -> set[str]:
        if text in self._specs or "," not in text:
            return self._select_atom(text)
        found = set.intersection(*(self._select_atom(part) for part in text.split(",")))
        if not found:
            raise UsageError(f"no pipeline matches all parts of {text!r}, though each part matches some")
        return found

    def _select_atom(self, text: str) -> set[str]:
        if text in self._specs:
            return {text}
        parts = _ATOM.fullmatch(text)
        if parts is None or (parts["at"] and (parts["up"], parts["down"]) != (None, None)):
            raise UsageError(f"{text!r} is not a selector", next_step=_HELP)
        core = self._match(parts["what"])
        found = set(core)
        if parts["at"]:
            found |= _reachable(core, self._downstreams, None)
            return found | self.upstreams_of(found)
        if parts["up"] is not None:
            found |= _reachable(core, self._upstreams, int(parts["up"]) if parts["up"] else None)
        if parts["down"] is not None:
            found |= _reachable(core, self._downstreams, int(parts["down"]) if parts["down"] else None)
        return found

    def _match(self, text: str) -> set[str]:
        method, colon, value = text.partition(":")
        if text in self._specs or not colon:
            method, value = "name", text
        elif method not in _METHODS:
            raise UsageError(
                f"there is no selector {method}:.{did_you_mean(method, _METHODS)}", next_step=_HELP
            )
        if method == "workflow":
            workflows = self._registry.workflows
            hit = [workflow for name, workflow in workflows.items() if fnmatchcase(name, value)]
            found = {job for workflow in hit for job in workflow.jobs}
        else:
            names_of = _METHODS[method]
            found = {
                name
                for name, spec in self._specs.items()
                if any(fnmatchcase(each, value) for each in names_of(spec))
            }
        if not found:
            raise self._no_match_error(method, value)
        return found

    def _no_match_error(self, method: str, value: str) -> FlowError:
        if method == "name":
            if value in self._registry.workflows:
                hint = f" There is a workflow of this name: workflow:{value}"
            elif value in self._registry.streams:
                hint = f" It is a stream, which  flow consume {value}  follows."
            else:
                hint = did_you_mean(value, self._specs)
            what = "matches" if any(sign in value for sign in "*?[") else "is named"
            return UnknownName(
                f"no pipeline {what} {value!r}.{hint}",
                next_step="flow list  shows what the module declares",
            )
        known: set[str] = set(self._registry.workflows)
        if method != "workflow":
            known = {each for spec in self._specs.values() for each in _METHODS[method](spec)}
        verbs = {"tag": "has the tag", "source": "reads from", "target": "loads into"}
        what = f"no pipeline {verbs[method]}" if method in verbs else "there is no workflow"
        return UnknownName(
            f"{what} {value!r}.{did_you_mean(value, known)}",
            next_step="flow list  shows what the module declares",
        )


def _source_connections(spec: PipelineSpec) -> tuple[str, ...]:
    return (connection_label(spec.source.connection or spec.targets[0].connection),)


_METHODS: Mapping[str, Callable[[PipelineSpec], tuple[str, ...]]] = {
    "name": lambda spec: (spec.name,),
    "tag": lambda spec: spec.tags,
    "workflow": lambda spec: (),  # handled by the registry
    "source": _source_connections,
    "target": lambda spec: tuple(connection_label(target.connection) for target in spec.targets),
}


def _reachable(start: Iterable[str], edges: Mapping[str, Sequence[str]], steps: int | None) -> set[str]:
    """The names that are at most ``steps`` edges away; at any distance when it is None."""
    found: set[str] = set()
    frontier = set(start)
    while frontier and steps != 0:
        frontier = {name for each in frontier for name in edges.get(each, ())} - found
        found |= frontier
        steps = None if steps is None else steps - 1
    return found
