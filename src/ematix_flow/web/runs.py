"""Endpoints of runs: a page of them, one run, its neighbours, its entries in ledgers, and its log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ematix_flow.errors import UsageError
from ematix_flow.state.runlog.base import URL_VARIABLE
from ematix_flow.state.runlog.history import RunCursor, RunFilter
from ematix_flow.state.runlog.records import RunRecord
from ematix_flow.state.runlog.shown_runs import run_lines_json, run_log_lines
from ematix_flow.web.answers import not_found
from ematix_flow.web.endpoints import Call
from ematix_flow.web.possible_actions import possible_actions
from ematix_flow.web.run_values import full_run_json, run_json
from ematix_flow.web.site import Site

_AROUND = 20  # runs before and after one that may be attempts at the same slot
_MOST_NEIGHBOURS = 20  # pipelines up- and downstream, of each
_LEDGER_SECONDS = 60.0  # for a process that starts, reads the module and asks each target


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
    held = _held_runs(site, page.records)
    return {
        "items": [{**run_json(record), "is_held": record.run_id in held} for record in page.records],
        "next": None if page.next is None else str(page.next),
    }


def _held_runs(site: Site, records: Sequence[RunRecord]) -> set[str]:
    """Which of the runs wait at a safe point because they were paused: the run log has them as running."""
    running = {record.run_id for record in records if record.status == "running"}
    holds = site.stores.actions().holds() if running else ()
    return running & {hold.held_run for hold in holds if hold.held_run is not None}


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


def show_around(site: Site, call: Call) -> dict[str, Any]:
    """The runs of the same pipeline before and after a run, and those of the pipelines up- and downstream."""
    record = require_run(site, call.required("id"))
    log, pipelines = site.stores.run_log(), site.registry.pipelines
    spec = pipelines[record.pipeline].spec if record.pipeline in pipelines else None
    upstreams = list(spec.depends_on) if spec is not None else []
    downstreams = [each.spec.name for each in pipelines.values() if record.pipeline in each.spec.depends_on]

    def runs_before(pipeline: str) -> Sequence[RunRecord]:
        cursor = RunCursor.of(record) if pipeline == record.pipeline else None
        return log.page(RunFilter(pipeline, until=None if cursor else record.started_at), cursor, 1).records

    def runs_after(pipeline: str) -> Sequence[RunRecord]:
        if pipeline == record.pipeline:
            return log.following(record, 1)
        if record.finished_at is None:  # what depends on a run starts after its end
            return ()
        return log.following(replace(record, pipeline=pipeline, started_at=record.finished_at), 1)

    def found(runs: Sequence[RunRecord]) -> dict[str, Any] | None:
        return run_json(runs[0]) if runs else None

    return {
        "previous": found(runs_before(record.pipeline)),
        "next": found(runs_after(record.pipeline)),
        "upstream": [
            {"pipeline": name, "run": found(runs_before(name))} for name in upstreams[:_MOST_NEIGHBOURS]
        ],
        "downstream": [
            {"pipeline": name, "run": found(runs_after(name))} for name in downstreams[:_MOST_NEIGHBOURS]
        ],
        "left_out": sum(max(0, len(names) - _MOST_NEIGHBOURS) for names in (upstreams, downstreams)),
    }


def ledger_run(site: Site, call: Call) -> str:
    """The id of the run whose ledger is asked for."""
    return require_run(site, call.required("id")).run_id


def show_ledger(site: Site, call: Call) -> dict[str, Any]:
    """What `flow runs show --ledger` reads, in its process: a target may be slow, or not answer at all."""
    record = require_run(site, call.required("id"))
    command = ["runs", "show", "--ledger", "--module", site.module, "--output", "json", "--", record.run_id]
    shown = f"flow runs show {record.run_id[:8]} --ledger"
    found = site.commands.run(command, shown, _LEDGER_SECONDS, {URL_VARIABLE: site.stores.url})
    return {"run_id": record.run_id, "targets": found["ledger"]}


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
