"""What the commands about actions share: requesting one, doing what it asks for, and showing it."""

from __future__ import annotations

import datetime as dt
import getpass
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from time import sleep
from typing import TYPE_CHECKING, Any

from ematix_flow.cli.local_time import format_local_time, local_zone_name
from ematix_flow.cli.output import write_json, write_text
from ematix_flow.cli.project import read_run_log
from ematix_flow.cli.slot_runners import slots_url
from ematix_flow.cli.terminal import say

if TYPE_CHECKING:
    from ematix_flow.cli.run_views import RunView
    from ematix_flow.graph.registry import Registry
    from ematix_flow.run.run_context import RunContext
    from ematix_flow.schedule.actions.carrying_out import ActionEnd, ActionWork
    from ematix_flow.schedule.actions.requests import ActionReceipt
    from ematix_flow.state.actions.base import ActionStore
    from ematix_flow.state.actions.records import ActionRecord

_POLL_SECONDS = 2.0  # for the end of an action that another process carries out


@dataclass(frozen=True)
class ActionDesk:
    """Requests actions of a person at this machine, and looks at them."""

    registry: Registry
    run_log: str | None
    actions: ActionStore

    def request(self, kind: str, subject: str, arguments: Mapping[str, Any] | None = None) -> ActionReceipt:
        from ematix_flow.backends.state_stores.run_logs import open_slots
        from ematix_flow.schedule.actions.requests import request_action

        with (
            read_run_log(self.run_log, read_only=False) as log,
            open_slots(slots_url(self.run_log), env=os.environ) as slots,
        ):
            return request_action(
                kind,
                subject,
                arguments or {},
                by=user_name(),
                via="cli",
                registry=self.registry,
                run_log=log,
                slots=slots,
                actions=self.actions,
            )


@contextmanager
def action_desk(registry: Registry, run_log: str | None) -> Iterator[ActionDesk]:
    from ematix_flow.backends.state_stores.run_logs import open_actions

    with open_actions(slots_url(run_log), env=os.environ, keep_open=True) as actions:
        yield ActionDesk(registry, run_log, actions)


def user_name() -> str:
    """The name under which this person requests actions: that of the account."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container may run as a number that has no name
        return str(os.getuid()) if hasattr(os, "getuid") else "somebody"


def action_work(registry: Registry, context: RunContext, run_log: str | None, view: RunView) -> ActionWork:
    """A function that does what an action asks for."""
    from ematix_flow.backends.state_stores.run_logs import open_slots
    from ematix_flow.schedule.actions.action_runs import ActionRuns
    from ematix_flow.state.dead_letters.base import LEASE_SECONDS

    runs = ActionRuns(
        registry,
        replace(context, listener=view),
        lambda: open_slots(slots_url(run_log), env=os.environ),
        view.started,
        view.finished,
    )

    def work(action: ActionRecord) -> ActionEnd:
        if action.kind == "restart":
            return runs.restart(action)
        if action.kind == "replay_letters":
            if action.deaths:  # the process that died may have leased letters
                context.sleep(LEASE_SECONDS)
            return _replay_letters(registry, action, run_log)
        return runs.run(action)

    return work


def _replay_letters(registry: Registry, action: ActionRecord, run_log: str | None) -> ActionEnd:
    """Replay letters. A replay finds out what an earlier one of this action has loaded."""
    from ematix_flow.backends.state_stores.dead_letters import open_stream_dead_letters
    from ematix_flow.schedule.actions.arguments import letter_selection
    from ematix_flow.schedule.actions.carrying_out import ActionEnd
    from ematix_flow.streams.dead_letter_replay import replay_recorded

    declared = registry.stream(action.subject)
    with open_stream_dead_letters(declared.spec, env=os.environ) as letters:
        result, run_id = replay_recorded(declared, letters, letter_selection(action.arguments), run_log)
    failed = result.failed or result.lost
    text = f"{result.replayed:,} of {result.taken:,} dead letters replayed"
    if result.failed:
        text += f", {result.failed:,} failed again"
    if result.lost:
        text += f", {result.lost:,} taken by another replay"
    return ActionEnd("failed" if failed else "done", text, (run_id,))


def carry_out_here(desk: ActionDesk, action: ActionRecord, engine: str | None) -> int:
    """Carry out an action in this process, and return its exit code.

    If another process has claimed it already, wait for its end. If that process dies, carry it out here.
    """
    from ematix_flow.cli.run_views import choose_view
    from ematix_flow.cli.signals import interruptible
    from ematix_flow.run.context_setup import run_context
    from ematix_flow.schedule.actions.carrying_out import LEASE_SECONDS, ActionCarryingOut
    from ematix_flow.state.process_liveness import new_holder

    holder = new_holder()
    claimed = _claim_or_wait(desk.actions, action, holder, LEASE_SECONDS)
    if claimed is None:
        return 0 if desk.actions.get(action.action_id).status == "done" else 1
    view = choose_view([action.subject], quiet=False, show_plans=False)
    with (
        view.display(),
        interruptible(),
        run_context(run_log=desk.run_log, engine=engine, listener=view, trigger="cli") as context,
    ):
        work = action_work(desk.registry, context, desk.run_log, view)
        ended = ActionCarryingOut(desk.actions, work, hands_back=False, holder=holder).carry_out(claimed)
    if ended.error is not None:
        return ended.error.exit_code
    return 0 if ended.status == "done" else 1


def _claim_or_wait(
    actions: ActionStore, action: ActionRecord, holder: str, seconds: float
) -> ActionRecord | None:
    """Claim the action. None if another process has carried it out: it has ended when this returns."""
    from ematix_flow.state.actions.records import UNFINISHED
    from ematix_flow.state.process_liveness import format_holder

    claimed = actions.claim(action, holder, seconds)
    is_said = False
    while claimed is None:
        known = actions.get(action.action_id)
        if known.status not in UNFINISHED:
            return None
        if known.is_claimable(actions.now()):
            claimed = actions.claim(known, holder, seconds)
            continue
        if not is_said:
            who = format_holder(known.holder) if known.holder else "another process"
            say(f"{who} carries out the action {action.action_id[:8]}; waiting for its end")
            is_said = True
        sleep(_POLL_SECONDS)
    return claimed


def write_receipt(
    desk: ActionDesk,
    receipt: ActionReceipt,
    output: str,
    next_step: str | None,
    summary: str | None = None,
) -> None:
    """Show an action that was requested or done at once, and what to run next."""
    from ematix_flow.schedule.actions.untaken_actions import action_json

    if output == "json":
        write_json({**action_json(receipt.action, desk.actions.now()), "is_new": receipt.is_new})
        return
    text = summary or receipt.action.outcome or receipt.action.status
    asked = receipt.action
    earlier = (
        "" if receipt.is_new else f", as {asked.requested_by} did at {format_local_time(asked.requested_at)}"
    )
    write_text(f"{text}{earlier}")
    if next_step:
        say(next_step)


def write_action(action: ActionRecord, output: str, now: dt.datetime) -> None:
    """Show everything about one action."""
    from ematix_flow.schedule.actions.untaken_actions import action_json, describe_wait
    from ematix_flow.state.process_liveness import format_holder

    if output == "json":
        write_json(action_json(action, now))
        return
    zone = local_zone_name()
    requested = f"{format_local_time(action.requested_at)} {zone}"
    facts = {
        "action": action.action_id,
        "what": action.kind.replace("_", " "),
        "of": action.subject,
        "with": json.dumps(action.arguments, ensure_ascii=False) if action.arguments else None,
        "status": action.status,
        "requested": f"{requested}, by {action.requested_by}, {action.via}",
        "ended": f"{format_local_time(action.ended_at)} {zone}" if action.ended_at else None,
        "held by": format_holder(action.holder) if action.holder else None,
        "outcome": action.outcome,
        "waits": describe_wait(action, now),
        "runs": ", ".join(action.run_ids) or None,
    }
    write_text("\n".join(f"{label:<11}{value}" for label, value in facts.items() if value is not None))
    if action.run_ids:
        say(f"flow runs show {action.run_ids[-1][:8]}  shows the last of its runs")
