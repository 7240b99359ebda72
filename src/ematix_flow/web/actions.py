"""Endpoints of actions: what was requested, by which person, and how it ended; and a new request."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from ematix_flow.errors import FlowError, UnknownName, UsageError
from ematix_flow.schedule.actions.arguments import check_arguments, require_action_kind
from ematix_flow.schedule.actions.requests import request_action
from ematix_flow.schedule.actions.untaken_actions import action_json
from ematix_flow.state.actions.records import ActionRecord
from ematix_flow.state.runlog.history import RunCursor
from ematix_flow.web.answers import Answer, Refused, not_found
from ematix_flow.web.endpoints import Call
from ematix_flow.web.site import READ_ONLY, Site

_ON_RUNS = ("restart", "stop")


def list_actions(site: Site, call: Call) -> dict[str, Any]:
    limit, after = call.number("limit", 50), call.text("after")
    cursor = None if after is None else RunCursor.parse(after)
    records = site.stores.actions().list(
        limit=limit + 1,
        before=None if cursor is None else (cursor.started_at, cursor.run_id),
        subject=call.text("subject"),
        unfinished=call.flag("unfinished"),
    )
    shown = records[:limit]
    last = RunCursor(shown[-1].requested_at, shown[-1].action_id) if len(records) > limit else None
    pipelines = _pipelines_of_runs(site, shown)
    now = site.stores.actions().now() if shown else None
    items = [
        {**action_json(record, now), "pipeline": pipelines.get(record.subject)}
        for record in shown
        if now is not None
    ]
    return {"items": items, "next": None if last is None else str(last)}


def _pipelines_of_runs(site: Site, records: Sequence[ActionRecord]) -> dict[str, str]:
    """The pipelines of the runs that these actions are on. Of a run that was purged there is none."""
    found: dict[str, str] = {}
    for run_id in {record.subject for record in records if record.kind in _ON_RUNS}:
        with contextlib.suppress(UnknownName, UsageError):
            run = site.stores.run_log().get(run_id)
            if run.run_id == run_id:  # else the subject is a name, and the first characters of an id
                found[run_id] = run.pipeline
    return found


def show_action(site: Site, call: Call) -> dict[str, Any]:
    try:
        actions = site.stores.actions()
        return action_json(actions.get(call.required("id")), actions.now())
    except UsageError as error:
        raise not_found(error) from error


def add_action(site: Site, call: Call) -> Answer:
    """Request an action as its command does. 409: it is not possible as things are now."""
    if site.read_only:
        raise Refused(409, UsageError(READ_ONLY))
    kind, subject, arguments = (call.body.get(name) for name in ("kind", "subject", "arguments"))
    if not isinstance(kind, str) or not isinstance(subject, str) or not subject:
        raise UsageError("an action needs a kind and a subject, which are texts")
    if arguments is not None and not isinstance(arguments, dict):
        raise UsageError("the arguments of an action are an object")
    unknown = sorted(call.body.keys() - {"kind", "subject", "arguments"})
    if unknown:
        raise UsageError(f"an action has no {unknown[0][:100]!r}", next_step="give kind, subject, arguments")
    check_arguments(require_action_kind(kind), arguments or {})
    stores = site.stores
    try:
        receipt = request_action(
            kind,
            subject,
            arguments or {},
            by=call.viewer.name,
            via=call.viewer.via,
            registry=site.registry,
            run_log=stores.run_log(),
            slots=stores.slots(),
            actions=stores.actions(),
        )
    except UnknownName as error:
        raise not_found(error) from error
    except UsageError as error:
        raise Refused(409, error) from error
    except FlowError as error:
        if error.exit_code == 2:
            raise Refused(409, error) from error
        raise
    site.overview.mark([subject], at_once=True)
    site.wake_carrier()
    return Answer(action_json(receipt.action, stores.actions().now()), status=201 if receipt.is_new else 200)
