"""``flow scheduler``: runs slots when they are due, until it is stopped."""

from __future__ import annotations

import datetime as dt
import os
from typing import TYPE_CHECKING, Annotated

import typer

from ematix_flow.cli.command_group import new_app
from ematix_flow.cli.json_log import log_environment, log_info_of
from ematix_flow.cli.options import (
    AlerterOption,
    EngineOption,
    ExcludeOption,
    MetricsOption,
    ModuleOption,
    NamesArgument,
    RunLogOption,
    SelectOption,
    TracesOption,
)
from ematix_flow.cli.project import load_project, require_module, resolve_pipeline_filter
from ematix_flow.cli.slot_runners import slot_runner, slots_url, warn_of_missing_drivers
from ematix_flow.cli.terminal import say

if TYPE_CHECKING:
    from ematix_flow.graph.registry import Registry

app = new_app()


@app.command()
def scheduler(
    names: NamesArgument = None,
    select: SelectOption = None,
    exclude: ExcludeOption = None,
    executor: Annotated[
        str,
        typer.Option(
            "--executor",
            metavar="URL",
            help="Where runs go: subprocess://?workers=4, k8s://NAMESPACE?image=IMAGE&env-from=SECRET, "
            "lambda://FUNCTION",
        ),
    ] = "subprocess://",
    module: ModuleOption = None,
    poll_interval: Annotated[
        float, typer.Option("--poll-interval", metavar="SECONDS", help="How often to check for due slots.")
    ] = 10.0,
    interval: Annotated[
        float,
        typer.Option(
            "--interval", metavar="SECONDS", help="How far back the first slot of a pipeline may be."
        ),
    ] = 60.0,
    lease_seconds: Annotated[
        float,
        typer.Option("--lease-seconds", help="After how long without a heartbeat a run counts as dead."),
    ] = 300.0,
    leader_lease_seconds: Annotated[
        float,
        typer.Option(
            "--leader-lease-seconds", help="After how long without a heartbeat another scheduler leads."
        ),
    ] = 60.0,
    grace: Annotated[
        float, typer.Option("--grace", metavar="SECONDS", help="How long runs may continue after a stop.")
    ] = 60.0,
    worker_id: Annotated[
        str | None, typer.Option("--worker-id", help="The name of this scheduler in the store.")
    ] = None,
    max_iterations: Annotated[
        int | None, typer.Option("--max-iterations", help="Stop after this many polls.")
    ] = None,
    alerter: AlerterOption = None,
    metrics: MetricsOption = None,
    traces: TracesOption = None,
    run_log: RunLogOption = None,
    engine: EngineOption = None,
) -> None:
    """Claim due slots and run them by the executor, upstreams first. You can start several schedulers."""
    from dataclasses import replace

    from ematix_flow.backends.state_stores.run_logs import open_actions
    from ematix_flow.cli.signals import stop_requests
    from ematix_flow.errors import UsageError
    from ematix_flow.observe.settings import ALERTERS_VARIABLE, Observability
    from ematix_flow.schedule.actions.carrier import ActionCarrier
    from ematix_flow.schedule.executors.executor_urls import open_executor
    from ematix_flow.schedule.executors.subprocesses import SubprocessExecutor
    from ematix_flow.schedule.scheduler import MIN_LEASE_SECONDS, Scheduler
    from ematix_flow.state.runlog.base import run_retention

    for name, seconds in (
        ("--poll-interval", poll_interval),
        ("--interval", interval),
        ("--lease-seconds", lease_seconds),
        ("--leader-lease-seconds", leader_lease_seconds),
    ):
        if not 0 < seconds < float("inf"):
            raise UsageError(f"{name} takes a number of seconds above 0, not {seconds:g}")
    if not grace >= 0:
        raise UsageError(f"--grace takes a number of seconds, not {grace:g}")
    if lease_seconds < MIN_LEASE_SECONDS:
        raise UsageError(
            f"--lease-seconds {lease_seconds:g} is shorter than a run takes to start: its claim would expire "
            "before it begins",
            state="nothing was run",
            next_step=f"give at least {MIN_LEASE_SECONDS:g}; 60 is enough for a busy machine",
        )
    if poll_interval >= leader_lease_seconds:
        raise UsageError(
            f"--poll-interval {poll_interval:g} is not shorter than the leader's lease of "
            f"{leader_lease_seconds:g} s: the lease would end between two polls",
            next_step="give a shorter --poll-interval, or a longer --leader-lease-seconds",
        )
    if worker_id is not None and not 0 < len(worker_id) <= 100:
        raise UsageError("--worker-id takes a name of up to 100 characters")
    runs = open_executor(executor)
    watching = Observability.resolve(os.environ, alerter or (), metrics, traces)
    store_url = slots_url(run_log)
    runs.check(store_url, engine)
    for_runs = watching.to_env() | log_environment()
    if ALERTERS_VARIABLE in for_runs:
        runs.check_alerts()
    registry = load_project(module)
    only = resolve_pipeline_filter(registry, names, select, exclude)
    _require_schedules(registry, only)
    if isinstance(runs, SubprocessExecutor):  # other executors may have more drivers installed
        warn_of_missing_drivers(registry, registry.pipelines if only is None else only)
    with (
        log_info_of("ematix_flow.schedule"),
        stop_requests(say, "stopping after the current runs; press again to stop at once") as asked,
        slot_runner(
            registry, run_log, engine, None, lease_seconds, "schedule", watching, keep_open=True
        ) as runner,
        open_actions(store_url, env=os.environ, keep_open=True) as actions,
    ):
        holder = f"{worker_id}/{runner.holder}" if worker_id else runner.holder
        carrier = ActionCarrier(
            actions,
            runner.run_log,
            runner.store,
            registry,
            require_module(module),
            store_url,
            engine,
            holder=holder,
            environment=for_runs,
            keep_for=run_retention(),
        )
        daemon = Scheduler(
            replace(runner, holder=holder, only=only),
            runs,
            require_module(module),
            store_url,
            engine,
            dt.timedelta(seconds=interval),
            poll_interval,
            leader_lease_seconds,
            grace,
            stop=asked,
            environment=for_runs,
            carrier=carrier,
        )
        scheduled = len(daemon.due_calculator.entries)
        say(f"schedules: {scheduled}, checked every {poll_interval:g} s; Ctrl-C stops")
        daemon.run(max_iterations)
        say("stopped")


def _require_schedules(registry: Registry, only: frozenset[str] | None) -> None:
    """Raise UsageError if no schedule and no workflow could ever start a pipeline."""
    from ematix_flow.errors import UsageError

    names = registry.pipelines if only is None else only
    workflows = registry.workflows.values()  # a workflow without a schedule may be triggered by a run
    jobs = {job for workflow in workflows for job in workflow.jobs}
    if any(registry.pipelines[name].spec.schedule or name in jobs for name in names):
        return
    which = "no pipeline" if only is None else "none of the chosen pipelines"
    raise UsageError(
        f"{which} has a schedule, and no workflow runs one: the scheduler would never run anything",
        state="nothing was run",
        next_step='give a pipeline schedule="0 2 * * *", or declare a workflow; flow list  shows what is '
        "declared, and  flow run NAME  runs one by hand",
    )
