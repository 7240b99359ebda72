"""``flow scheduler``: fires schedules until it is stopped."""

from __future__ import annotations

import datetime as dt
from typing import Annotated

import typer

from ematix_flow.cli.group import new_app
from ematix_flow.cli.log_lines import all_said
from ematix_flow.cli.options import EngineOption, ModuleOption, RunLogOption
from ematix_flow.cli.project import chosen_module, load_project
from ematix_flow.cli.slots import slot_runner, slots_url
from ematix_flow.cli.terminal import say

app = new_app()


@app.command()
def scheduler(
    executor: Annotated[
        str, typer.Option("--executor", metavar="URL", help="Where runs go: subprocess://?workers=4")
    ] = "subprocess://",
    module: ModuleOption = None,
    poll_interval: Annotated[
        float, typer.Option("--poll-interval", metavar="SECONDS", help="Between two looks at the clock.")
    ] = 10.0,
    interval: Annotated[
        float,
        typer.Option("--interval", metavar="SECONDS", help="How far back a pipeline that never fired looks."),
    ] = 60.0,
    lease_seconds: Annotated[
        float, typer.Option("--lease-seconds", help="After how long without a word a run counts as dead.")
    ] = 300.0,
    grace: Annotated[
        float, typer.Option("--grace", metavar="SECONDS", help="How long runs may go on after a stop.")
    ] = 60.0,
    worker_id: Annotated[
        str | None, typer.Option("--worker-id", help="The name of this scheduler in the store.")
    ] = None,
    max_iterations: Annotated[
        int | None, typer.Option("--max-iterations", help="Stop after so many looks.", hidden=True)
    ] = None,
    run_log: RunLogOption = None,
    engine: EngineOption = None,
) -> None:
    """Fire schedules: claim what is due, run it elsewhere, upstreams first. Start as many as you like."""
    from dataclasses import replace

    from ematix_flow.cli.signals import stop_requests
    from ematix_flow.schedule.executors.urls import executor_for
    from ematix_flow.schedule.scheduler import Scheduler

    runs = executor_for(executor)
    registry = load_project(module)
    with (
        stop_requests(say) as asked,
        all_said("ematix_flow.schedule"),
        slot_runner(registry, run_log, engine, None, lease_seconds, "schedule") as runner,
    ):
        daemon = Scheduler(
            replace(runner, holder=worker_id or runner.holder),
            runs,
            chosen_module(module),
            slots_url(run_log),
            dt.timedelta(seconds=interval),
            poll_interval,
            grace_seconds=grace,
            stop=asked,
        )
        say(f"{len(registry.pipelines)} pipelines, looked at every {poll_interval:g} s; Ctrl-C stops")
        daemon.run(max_iterations)
