"""Endpoints of pipelines: the list, one pipeline, its plan; and of workflows and the graph of everything."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ematix_flow.errors import UnknownName
from ematix_flow.graph.selection import select
from ematix_flow.graph.trigger_text import pipeline_trigger_text
from ematix_flow.schedule.status import workflow_statuses
from ematix_flow.spec.pipelines import connection_label
from ematix_flow.web.answers import Answer, not_found
from ematix_flow.web.command_process import CommandProcesses
from ematix_flow.web.endpoints import Call
from ematix_flow.web.overview import PipelineView
from ematix_flow.web.site import Site


def list_pipelines(site: Site, call: Call) -> Answer:
    views = site.overview.views()
    chosen: Sequence[PipelineView] = list(views.values())
    selector, search = call.text("select"), (call.text("search") or "").casefold()
    if selector is not None:
        names = set(select(site.registry, [selector]))
        chosen = [view for view in chosen if view.name in names]
    if search:
        chosen = [view for view in chosen if search in view.searched]
    items = b",".join(view.rendered for view in sorted(chosen, key=lambda view: view.rank))
    return Answer(None, body=b'{"items":[' + items + b"]}")


def show_pipeline(site: Site, call: Call) -> dict[str, Any]:
    name = call.required("name")
    spec = require_pipeline(site, name)
    connection = spec.source.connection or spec.targets[0].connection
    downstreams = [
        each.spec.name for each in site.registry.pipelines.values() if name in each.spec.depends_on
    ]
    return {
        **json.loads(site.overview.views()[name].rendered),
        "upstreams": list(spec.depends_on),
        "downstreams": downstreams,
        "workflows": [each.name for each in site.registry.workflows.values() if name in each.jobs],
        "source": {
            "connection": connection_label(connection),
            "table": spec.source.table,
            "watermark_column": spec.source.watermark_column,
        },
        "schedule_text": pipeline_trigger_text(spec, site.registry),
    }


def require_pipeline(site: Site, name: str) -> Any:
    """The spec of a pipeline. Raises the refusal 404 if there is none."""
    try:
        return site.registry.pipeline(name).spec
    except UnknownName as error:
        raise not_found(error) from error


# ------------------------------------------------------------------ plans


@dataclass
class PlanCache:
    """Plans, made by `flow plan` in a process for each, so that none of its libraries stays in the server."""

    module: str
    seconds: float = 60.0
    longest: float = 120.0
    _made: dict[str, tuple[float, Any]] = field(default_factory=dict)
    _locks: dict[str, threading.Lock] = field(default_factory=dict)
    _places: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(2))

    def plan(self, name: str, commands: CommandProcesses) -> Any:
        """Return the JSON of the plan. Several who ask at once wait for one process."""
        with self._locks.setdefault(name, threading.Lock()):
            known = self._made.get(name)
            if known is not None and time.monotonic() - known[0] < self.seconds:
                return known[1]
            with self._places:
                command = ["plan", "--module", self.module, "--output", "json", "--", name]
                found = commands.run(command, f"flow plan {name}", self.longest)[0]
            self._made[name] = time.monotonic(), found
            return found


def planned_pipeline(site: Site, call: Call) -> str:
    """The name of the pipeline whose plan is asked for."""
    return str(require_pipeline(site, call.required("name")).name)


def show_plan(plans: PlanCache) -> Any:
    def show(site: Site, call: Call) -> Any:
        name = call.required("name")
        require_pipeline(site, name)
        return plans.plan(name, site.commands)

    return show


# ------------------------------------------------------------------ workflows


def list_workflows(site: Site, call: Call) -> dict[str, Any]:
    slots = site.stores.slots()
    statuses = workflow_statuses(site.registry, None, slots, site.stores.run_log(), slots.now())
    views = site.overview.views()
    return {
        "items": [
            {
                **status.to_json(),
                "jobs_state": [
                    {"pipeline": name, "status": views[name].state if name in views else "never"}
                    for name in status.spec.jobs
                ],
            }
            for status in statuses
        ]
    }
