"""``flow run-slot``: runs one slot that a scheduler has claimed. Executors call it, not people."""

from __future__ import annotations

import datetime as dt
from typing import Annotated

import typer

from ematix_flow.cli.command_group import new_app
from ematix_flow.cli.options import EngineOption, ModuleOption, NameArgument, RunLogOption
from ematix_flow.cli.project import load_project
from ematix_flow.cli.run_views import choose_view
from ematix_flow.cli.slot_runners import slot_runner
from ematix_flow.errors import UsageError

app = new_app()


@app.command(name="run-slot")
def run_slot(
    name: NameArgument,
    slot: Annotated[str, typer.Option("--slot", metavar="TIME", help="The time of the slot.")],
    claim: Annotated[str, typer.Option("--claim", metavar="FENCE:HOLDER", help="The holder of the claim.")],
    module: ModuleOption = None,
    lease_seconds: Annotated[float, typer.Option("--lease-seconds")] = 300.0,
    run_log: RunLogOption = None,
    engine: EngineOption = None,
) -> int:
    """Run one slot under a claim, renew the claim during the run, and show how it ended."""
    from ematix_flow.cli.signals import interruptible
    from ematix_flow.schedule.run_due import resolve_claim

    at = _parse_slot_time(slot)
    registry = load_project(module)
    where = registry.pipeline(name).spec.where
    view = choose_view([name], quiet=False, show_plans=False)
    with (
        view.display(),
        interruptible(),
        slot_runner(registry, run_log, engine, view, lease_seconds, "schedule") as runner,
    ):
        try:
            held = resolve_claim(runner.store, name, at, claim)
        except UsageError as error:
            raise error.with_location(where) from None
        outcome = runner.run_claimed(held)
        view.slot_finished(outcome)
    return outcome.error.exit_code if outcome.error is not None else 0


def _parse_slot_time(text: str) -> dt.datetime:
    try:
        found = dt.datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError(f"--slot takes a time such as 2026-03-29T12:00:00+00:00, not {text!r}") from error
    return found if found.tzinfo else found.replace(tzinfo=dt.timezone.utc)
