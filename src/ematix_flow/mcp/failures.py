"""Why a run failed: its error in parts, what changed since the last success, what ran before, and its log.

Everything is read from the run log by the functions of `flow web`; nothing is guessed. A record has its error
as one text, whose parts are on lines with their names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ematix_flow.errors import UsageError
from ematix_flow.schedule.actions.requests import find_refusal
from ematix_flow.state.runlog.history import RunCursor, RunFilter
from ematix_flow.state.runlog.records import RunRecord, RunStatus
from ematix_flow.state.runlog.shown_runs import run_lines_json, run_log_lines
from ematix_flow.web.endpoints import Call
from ematix_flow.web.run_values import full_run_json
from ematix_flow.web.runs import require_run
from ematix_flow.web.site import Site

_LOG_LINES = 60
_EARLIER = 10
_MOST_CHANGES = 50
_FAILED: tuple[RunStatus, ...] = ("failed", "interrupted", "cancelled")
_COMPARED = (
    "code_version",
    "engine",
    "host",
    "target",
    "mode",
    "path",
    "trigger",
    "source_from",
    "source_to",
)
_LABELS = ("where", "state", "next")


def explain_failure(site: Site, call: Call) -> dict[str, Any]:
    record = _find_run(site, call)
    log = site.stores.run_log()
    successes = log.page(RunFilter(record.pipeline, "succeeded"), RunCursor.of(record), 1).records
    success = log.get(successes[0].run_id) if successes else None  # with its plan
    later = log.following(record, 1)
    loaded = log.page(RunFilter(record.pipeline, "succeeded", since=record.started_at), None, 1).records
    since = loaded[0] if loaded else next((each for each in later if each.ended_well), None)
    parts = error_parts(record)
    shown = full_run_json(record)
    names = ("run_id", "pipeline", "status", "trigger", "slot", "attempt", "started_at", "finished_at")
    return {
        "run": {name: shown[name] for name in names},
        "is_newest": not later,
        "succeeded_since": None if since is None else brief_run(since),
        "error": parts,
        "last_success": None if success is None else brief_run(success),
        "changed_since_last_success": None if success is None else list(_changes(success, record)),
        "ran_before": _ran_before(site, record),
        "log": run_lines_json(record, run_log_lines(log, record, _LOG_LINES))["lines"],
        "next_steps": list(_next_steps(site, record, parts, since)),
    }


def _find_run(site: Site, call: Call) -> RunRecord:
    """The run that is meant. Raises UsageError if it did not fail, or if none did."""
    wanted, pipeline = call.text("run"), call.text("pipeline")
    if wanted is not None:
        record = require_run(site, wanted)
        if record.status not in ("running", "succeeded") and not record.ended_well:
            return record
        raise UsageError(
            f"run {record.run_id[:8]} of {record.pipeline} has not failed: it is {record.status}",
            next_step="show_run  shows it",
        )
    if pipeline is not None and pipeline not in {*site.registry.pipelines, *site.registry.streams}:
        site.registry.pipeline(pipeline)  # raises the error with similar names
    log = site.stores.run_log()
    newest = [
        record for status in _FAILED for record in log.page(RunFilter(pipeline, status), None, 1).records
    ]
    if not newest:
        whose = f"run of {pipeline}" if pipeline else "run"
        raise UsageError(f"the run log has no {whose} that failed", next_step="list_runs  shows all runs")
    return log.get(max(newest, key=lambda record: record.started_at).run_id)


def error_parts(record: RunRecord) -> dict[str, str | None]:
    """The parts of the error that a record has as one text."""
    what: list[str] = []
    found: dict[str, list[str]] = {}
    lines = what
    for line in (record.error_message or "").splitlines():
        label, colon, text = line.strip().partition(":")
        if line.startswith("  ") and colon and label in _LABELS and label not in found:
            lines = found[label] = [text.strip()]
        else:
            lines.append(line)
    texts = {label: "\n".join(each) for label, each in found.items()}
    return {
        "type": record.error_type,
        "what": "\n".join(what) or None,
        "where": record.error_where or texts.get("where"),
        "state": texts.get("state"),
        "next": texts.get("next"),
    }


def brief_run(record: RunRecord) -> dict[str, Any]:
    value = full_run_json(record)
    names = ("run_id", "pipeline", "status", "trigger", "started_at", "duration_seconds", "error_type")
    return {name: value[name] for name in (*names, "rows_read", "rows_inserted", "code_version")}


# ------------------------------------------------------------------ what changed


def _changes(before: RunRecord, after: RunRecord) -> Iterator[dict[str, Any]]:
    """What differs between two runs: where and how they ran, the range that they read, and their plans."""
    old, new = full_run_json(before), full_run_json(after)
    for name in _COMPARED:
        if new[name] is not None and old[name] != new[name]:  # a run that failed early does not know some
            yield {"what": name, "before": old[name], "after": new[name]}
    plans = old["metrics"].get("plan"), new["metrics"].get("plan")
    if all(isinstance(plan, Mapping) for plan in plans):
        found = _differences("plan", *plans)
        for number, change in enumerate(found):
            if number == _MOST_CHANGES:
                yield {"what": f"more than {_MOST_CHANGES} values of the plan", "before": None, "after": None}
                return
            yield change


def _differences(place: str, old: Any, new: Any) -> Iterator[dict[str, Any]]:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for name in dict.fromkeys([*old, *new]):
            yield from _differences(f"{place}.{name}", old.get(name), new.get(name))
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for number, (one, other) in enumerate(zip(old, new, strict=True)):
            yield from _differences(f"{place}[{number}]", one, other)
    elif old != new:
        yield {"what": place, "before": old, "after": new}


# ------------------------------------------------------------------ around it


def _ran_before(site: Site, record: RunRecord) -> dict[str, Any]:
    """The runs of this pipeline before, those of its upstreams, and the last of any pipeline."""
    log = site.stores.run_log()
    declared = site.registry.pipelines.get(record.pipeline)
    newest: dict[str, Any] = {}
    for name in () if declared is None else declared.spec.depends_on:
        found = log.page(RunFilter(name, until=record.started_at), None, 1).records
        newest[name] = brief_run(found[0]) if found else None
    same = log.page(RunFilter(record.pipeline), RunCursor.of(record), _EARLIER).records
    last = log.page(RunFilter(until=record.started_at), None, _EARLIER).records
    return {
        "same_pipeline": [brief_run(run) for run in same],
        "upstreams": newest,
        "any_pipeline": [brief_run(run) for run in last],
    }


def _next_steps(
    site: Site, record: RunRecord, parts: Mapping[str, str | None], since: RunRecord | None
) -> Iterator[str]:
    if since is not None:
        yield f"nothing has to be done: run {since.run_id[:8]} of {record.pipeline} ended well since"
        return
    if parts["next"]:
        yield parts["next"]
    stores = site.stores
    refusal = find_refusal(
        "restart",
        record.run_id,
        {},
        registry=site.registry,
        run_log=stores.run_log(),
        slots=stores.slots(),
        actions=stores.actions(),
    )
    if refusal is None:
        yield f"flow restart {record.run_id[:8]}  runs it again from the step that failed"
    elif refusal.advice and refusal.advice != parts["next"]:
        yield refusal.advice
    if record.pipeline in site.registry.pipelines:
        yield f"flow plan {record.pipeline}  shows what a run would do now: plan_pipeline"
