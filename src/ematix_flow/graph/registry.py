"""The registry of declared pipelines, streams, workflows, connections and transforms, by name.

The current registry is a context variable, so that two modules, threads or tests never mix. The registry
checks that names are unique and that dependencies have no cycle; it does not know how a pipeline runs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ematix_flow.errors import (
    DeclarationError,
    DependencyCycle,
    DuplicateName,
    FlowError,
    UnknownName,
    did_you_mean,
)
from ematix_flow.graph.dependency_order import find_cycle, topological_order

if TYPE_CHECKING:
    from ematix_flow.spec.connections import Connection
    from ematix_flow.spec.location import SourceLocation
    from ematix_flow.spec.pipelines import PipelineSpec, TransformSpec
    from ematix_flow.spec.streams import StreamSpec
    from ematix_flow.spec.workflows import WorkflowSpec

LONGEST_NAME = 160  # with the prefix of a workflow, the length of a column of the slots table
_RESERVED_PREFIXES = ("workflow:", "freshness:", "tag:", "source:", "target:")


@dataclass(frozen=True)
class DeclaredConnection:
    """A registered connection and where it was declared."""

    connection: Connection
    where: SourceLocation | None


@dataclass(frozen=True)
class DeclaredPipeline:
    """A pipeline's spec with the function and the object behind it."""

    spec: PipelineSpec
    function: Callable[..., Any]
    handle: Any  # the Pipeline object of the user's module; graph does not import api
    post_functions: Mapping[int, Any] = field(default_factory=dict)  # and probes, by step number
    pre_probes: tuple[Any, ...] = ()  # the data probes that run before anything is staged


@dataclass(frozen=True)
class DeclaredStream:
    """A streaming pipeline's spec and the object behind it."""

    spec: StreamSpec
    handle: Any


@dataclass(frozen=True)
class DeclaredTransform:
    spec: TransformSpec
    function: Callable[..., Any]


def _check_name(kind: str, name: str, where: SourceLocation | None) -> None:
    """Refuse a name that the run log, a selector or a terminal cannot show."""
    advice = "give it another name with  name="
    if len(name) > LONGEST_NAME:
        raise DeclarationError(
            f"the name of the {kind} {name[:40]!r}… has {len(name)} characters; "
            f"at most {LONGEST_NAME} are allowed",
            where=where,
            next_step="give it a shorter name with  name=",
        )
    if not name.isprintable():
        raise DeclarationError(
            f"the name of the {kind} {name!r} has a character that cannot be printed",
            where=where,
            next_step=advice,
        )
    if name.startswith(_RESERVED_PREFIXES):
        raise DeclarationError(
            f"the name of the {kind} {name!r} begins with {name.partition(':')[0]}:, "
            "which means something else to selectors and to the run log",
            where=where,
            next_step=advice,
        )


@dataclass
class Registry:
    """One namespace of declarations."""

    connections: dict[str, DeclaredConnection] = field(default_factory=dict)
    pipelines: dict[str, DeclaredPipeline] = field(default_factory=dict)
    transforms: dict[str, DeclaredTransform] = field(default_factory=dict)
    workflows: dict[str, WorkflowSpec] = field(default_factory=dict)
    streams: dict[str, DeclaredStream] = field(default_factory=dict)
    _upstream_names: set[str] = field(default_factory=set, repr=False)  # what a pipeline depends on

    def add_connection(self, connection: Connection, where: SourceLocation | None) -> None:
        """Register the connection. A later declaration of the same name replaces an earlier one."""
        self.connections[connection.name] = DeclaredConnection(connection, where)

    def add_pipeline(self, declared: DeclaredPipeline) -> None:
        spec = declared.spec
        _check_name("pipeline", spec.name, spec.where)
        before = self.pipelines.get(spec.name)
        self._refuse_duplicate("pipeline", spec.name, before.spec.where if before else None, spec.where)
        cycle = self._find_cycle_through(spec)
        if cycle:
            raise DependencyCycle(
                f"pipelines depend on each other in a cycle: {' → '.join(cycle)}",
                where=spec.where,
                next_step="remove one of these names from depends_on=",
            )
        self.pipelines[spec.name] = declared
        self._upstream_names.update(spec.depends_on)

    def _find_cycle_through(self, spec: PipelineSpec) -> list[str] | None:
        """The cycle that this pipeline closes, or None. Only an upstream of others can close one."""
        if spec.name not in spec.depends_on and spec.name not in self._upstream_names:
            return None
        others = (declared.spec for declared in self.pipelines.values())
        return find_cycle({**{o.name: o.depends_on for o in others}, spec.name: spec.depends_on})

    def add_transform(self, declared: DeclaredTransform) -> None:
        spec = declared.spec
        before = self.transforms.get(spec.name)
        self._refuse_duplicate("transform", spec.name, before.spec.where if before else None, spec.where)
        self.transforms[spec.name] = declared

    def add_stream(self, declared: DeclaredStream) -> None:
        spec = declared.spec
        _check_name("streaming pipeline", spec.name, spec.where)
        before = self.streams.get(spec.name)
        self._refuse_duplicate(
            "streaming pipeline", spec.name, before.spec.where if before else None, spec.where
        )
        self.streams[spec.name] = declared

    def stream(self, name: str) -> DeclaredStream:
        if name not in self.streams:
            raise UnknownName(
                f"no streaming pipeline is named {name!r}.{did_you_mean(name, self.streams)}",
                next_step="flow consume-list  shows what the module declares",
            )
        return self.streams[name]

    def add_workflow(self, spec: WorkflowSpec) -> None:
        _check_name("workflow", spec.name, spec.where)
        before = self.workflows.get(spec.name)
        self._refuse_duplicate("workflow", spec.name, before.where if before else None, spec.where)
        self.workflows[spec.name] = spec

    def pipeline(self, name: str) -> DeclaredPipeline:
        if name not in self.pipelines:
            raise UnknownName(
                f"no pipeline is named {name!r}.{did_you_mean(name, self.pipelines)}",
                next_step="flow list  shows what the module declares",
            )
        return self.pipelines[name]

    def upstream_writer(self, name: str, connection: str) -> str | None:
        """The nearest upstream of the pipeline that loads into the connection; None if there is none."""
        from ematix_flow.spec.pipelines import connection_label

        reached, seen = [name], {name}
        for each in reached:  # grows while it is read: the nearest upstreams come first
            declared = self.pipelines.get(each)
            if declared is None:
                continue
            targets = declared.spec.targets if each != name else ()
            if any(connection_label(target.connection) == connection for target in targets):
                return each
            reached += [upstream for upstream in declared.spec.depends_on if upstream not in seen]
            seen.update(declared.spec.depends_on)
        return None

    def check(self) -> None:
        """Check what can be checked once the whole module is loaded: every used name must be declared."""
        for declared in self.pipelines.values():
            self.check_pipeline(declared.spec)
        self._refuse_reference_cycle()
        for workflow in self.workflows.values():
            self._check_workflow(workflow)
        self._refuse_workflow_cycle()

    def _check_workflow(self, workflow: WorkflowSpec) -> None:
        if workflow.name in self.pipelines:
            raise DuplicateName(
                f"{workflow.name!r} is the name of a workflow and of a pipeline", where=workflow.where
            )
        for job in workflow.jobs:
            self._refuse_stream(job, workflow, f"workflow {workflow.name!r} runs")
            if job not in self.pipelines:
                raise self._unknown_name_error(
                    "pipeline", job, workflow.where, f"workflow {workflow.name!r} runs"
                )
        for name in workflow.triggered_by.names() if workflow.triggered_by else ():
            if name not in self.pipelines and name not in self.workflows:
                who = f"workflow {workflow.name!r} waits for"
                self._refuse_stream(name, workflow, who)
                raise self._unknown_name_error("pipeline", name, workflow.where, who, self.workflows)

    def _refuse_stream(self, name: str, workflow: WorkflowSpec, who: str) -> None:
        if name in self.streams and name not in self.pipelines:
            raise DeclarationError(
                f"{who} the stream {name!r}, which never ends",
                where=workflow.where,
                next_step=f"flow consume {name}  follows it; leave it out of the workflow",
            )

    def _refuse_workflow_cycle(self) -> None:
        """Refuse workflows that start each other, directly or through their jobs: they would run forever."""
        runs: dict[str, list[str]] = {}
        for workflow in self.workflows.values():
            for job in workflow.jobs:
                runs.setdefault(job, []).append(workflow.name)
        edges = {
            name: [
                found
                for given in (workflow.triggered_by.names() if workflow.triggered_by else ())
                for found in ([given] if given in self.workflows else runs.get(given, ()))
            ]
            for name, workflow in self.workflows.items()
        }
        cycle = find_cycle(edges)
        if cycle:
            raise DependencyCycle(
                f"workflows start each other in a cycle: {' → '.join(cycle)}",
                where=self.workflows[cycle[0]].where,
                next_step="a workflow cannot wait for its own jobs: change triggered_by=",
            )

    def check_pipeline(self, spec: PipelineSpec) -> None:
        """Require that every name a pipeline uses is declared."""
        for upstream in spec.depends_on:
            if upstream not in self.pipelines:
                raise self._unknown_name_error("pipeline", upstream, spec.where, f"{spec.name!r} depends on")
        for reference in spec.transform_references:
            if reference not in self.transforms and reference not in self.pipelines:
                raise self._unknown_name_error("transform", reference, spec.where, f"{spec.name!r} refers to")

    def _refuse_reference_cycle(self) -> None:
        """Refuse a cycle of ``depends_on`` and ``transforms_post`` references."""
        edges = {
            name: (*d.spec.depends_on, *(r for r in d.spec.transform_references if r in self.pipelines))
            for name, d in self.pipelines.items()
        }
        cycle = find_cycle(edges)
        if cycle:
            raise DependencyCycle(
                f"pipelines run each other in a cycle: {' → '.join(cycle)}",
                where=self.pipelines[cycle[0]].spec.where,
                next_step="remove one of these from depends_on= or transforms_post=",
            )

    def dependency_order(self, names: list[str] | None = None) -> list[str]:
        """The named pipelines (all by default) with every upstream before its downstream."""
        wanted = set(self.pipelines if names is None else names)
        edges = {n: d.spec.depends_on for n, d in self.pipelines.items()}
        return [name for name in topological_order(edges) if name in wanted]

    def _unknown_name_error(
        self, kind: str, name: str, where: SourceLocation | None, who: str, also: Iterable[str] = ()
    ) -> FlowError:
        known = {*self.pipelines, *also, *(self.transforms if kind == "transform" else ())}
        return UnknownName(
            f"{who} {kind} {name!r}, which is not declared.{did_you_mean(name, known)}", where=where
        )

    @staticmethod
    def _refuse_duplicate(
        kind: str, name: str, before: SourceLocation | None, now: SourceLocation | None
    ) -> None:
        if before is None:
            return
        if before == now or hasattr(sys, "ps1") or "ipykernel" in sys.modules:
            return  # a reloaded module or notebook cell replaces its earlier declaration
        raise DuplicateName(
            f"{kind} {name!r} is declared twice; the first is at {before}",
            where=now,
            next_step="rename one of them, or give it another name with  name=",
        )


_current: ContextVar[Registry] = ContextVar("ematix_flow_registry")
_process_default = Registry()


def current_registry() -> Registry:
    """The registry that receives declarations now."""
    return _current.get(_process_default)


@contextmanager
def use_registry(registry: Registry) -> Iterator[Registry]:
    """Make ``registry`` the current one within the block, for a loader or a test."""
    token = _current.set(registry)
    try:
        yield registry
    finally:
        _current.reset(token)
