"""``flow run-action``: carries out one action that a carrier has claimed. Carriers call it, not people."""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import Annotated

import typer

from ematix_flow.cli.command_group import new_app
from ematix_flow.cli.options import EngineOption, ModuleOption, RunLogOption
from ematix_flow.cli.project import load_project
from ematix_flow.cli.run_views import choose_view
from ematix_flow.cli.slot_runners import slots_url

app = new_app()


@app.command(name="run-action")
def run_action(
    action_id: Annotated[str, typer.Argument(metavar="ACTION", hidden=True)],
    claim: Annotated[str, typer.Option("--claim", metavar="FENCE:HOLDER", help="The holder of the claim.")],
    module: ModuleOption = None,
    lease_seconds: Annotated[float, typer.Option("--lease-seconds")] = 60.0,
    run_log: RunLogOption = None,
    engine: EngineOption = None,
) -> int:
    """Carry out an action under a claim, renew the claim meanwhile, and record how it ended."""
    from ematix_flow.backends.state_stores.run_logs import open_actions
    from ematix_flow.cli.action_work import action_work
    from ematix_flow.cli.signals import interruptible
    from ematix_flow.run.context_setup import run_context
    from ematix_flow.schedule.actions.carrying_out import (
        ActionCarryingOut,
        ends_before_it_begins,
        resolve_action_claim,
    )

    with open_actions(slots_url(run_log), env=os.environ, keep_open=True) as actions:
        claimed = resolve_action_claim(actions, action_id, claim)
        with ExitStack() as opened:
            with ends_before_it_begins(actions, claimed):
                registry = load_project(module)
                view = choose_view([claimed.subject], quiet=False, show_plans=False)
                opened.enter_context(view.display())
                opened.enter_context(interruptible())
                context = opened.enter_context(
                    run_context(run_log=run_log, engine=engine, listener=view, trigger=claimed.via)
                )
            work = action_work(registry, context, run_log, view)
            ended = ActionCarryingOut(actions, work, hands_back=True, lease_seconds=lease_seconds).carry_out(
                claimed
            )
    return 0 if ended.status == "done" else 1
