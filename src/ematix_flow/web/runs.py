"""Endpoints of runs: a page of them, one run with what is around it, and its log."""

from __future__ import annotations

from typing import Any

from ematix_flow.errors import UsageError
from ematix_flow.state.runlog.history import RunCursor, RunFilter
from ematix_flow.state.runlog.records import RunRecord
from ematix_flow.state.runlog.shown_runs import run_lines_json, run_log_lines
from ematix_flow.web.answers import not_found
from ematix_flow.web.endpoints import Call
from ematix_flow.web.possible_actions import possible_actions
from ematix_flow.web.run_values import full_run_json, run_json
from ematix_flow.web.site import Site

_AROUND = 20  # runs before and after one that may be attempts at the same slot


def list_runs(site: Site, call: Call) -> dict[str, Any]:
    status: Any = call.text("status")
    wanted = RunFilter(
        pipeline=call.text("pipeline"),
        status=status,
        trigger=call.text("trigger"),
        since=call.time("since"),
        until=call.time("until"),
        text=call.text("text"),
    )
    after = call.text("after")
    cursor = None if after is None else RunCursor.parse(after)
    page = site.stores.run_log().page(wanted, cursor, call.number("limit", 50))
    return {
        "items": [run_json(record) for record in page.records],
        "next": None if page.next is None else str(page.next),
    }


def show_run(site: Site, call: Call) -> dict[str, Any]:
    record = require_run(site, call.required("id"))
    log = site.stores.run_log()
    later = log.following(record, _AROUND)
    earlier = log.page(RunFilter(record.pipeline), RunCursor.of(record), _AROUND).records
    around = [*reversed(earlier), record, *later]
    return {
        **full_run_json(record),
        "previous": earlier[0].run_id if earlier else None,
        "next": later[0].run_id if later else None,
        "attempts": [run_json(each) for each in around if _is_same_attempt(record, each)],
        "can": possible_actions(site, record),
    }


def show_log(site: Site, call: Call) -> dict[str, Any]:
    record = require_run(site, call.required("id"))
    return run_lines_json(record, run_log_lines(site.stores.run_log(), record, call.number("tail", 400)))


def require_run(site: Site, run_id: str) -> RunRecord:
    """The run with this id or unique prefix. Raises the refusal 404 if there is none."""
    try:
        return site.stores.run_log().get(run_id)
    except UsageError as error:
        raise not_found(error) from error


def _is_same_attempt(one: RunRecord, other: RunRecord) -> bool:
    """Whether both are attempts at the same slot or the same batch."""
    if one.run_id == other.run_id:
        return True
    if one.slot is not None:
        return one.slot == other.slot
    return one.batch is not None and one.batch == other.batch
