"""``flow freshness-check``: which pipelines are stale, by what they promise."""

from __future__ import annotations

import datetime as dt
import os
from typing import TYPE_CHECKING

from ematix_flow.cli.group import new_app
from ematix_flow.cli.moments import local, took, zone_name
from ematix_flow.cli.options import (
    AlerterOption,
    ExcludeOption,
    ModuleOption,
    NamesArgument,
    OutputOption,
    RunLogOption,
    SelectOption,
)
from ematix_flow.cli.output import Column, write_json, write_table
from ematix_flow.cli.project import load_project, narrowed, read_run_log
from ematix_flow.cli.terminal import say

if TYPE_CHECKING:
    from ematix_flow.schedule.freshness import Freshness

app = new_app()

_STYLES = {"healthy": "green", "warning": "yellow", "breached": "bold red"}


@app.command(name="freshness-check")
def freshness_check(
    names: NamesArgument = None,
    select: SelectOption = None,
    exclude: ExcludeOption = None,
    module: ModuleOption = None,
    alerter: AlerterOption = None,
    run_log: RunLogOption = None,
    output: OutputOption = "text",
) -> int:
    """Say how fresh each pipeline with a freshness_sla is; exit code 1 when one is stale.

    With an alerter, a pipeline that becomes stale is told once, and again when it is fresh. Let cron call it.
    """
    from ematix_flow.graph.registry import use_registry
    from ematix_flow.observe.settings import Observability, observing
    from ematix_flow.schedule.context import spark_starter
    from ematix_flow.schedule.freshness import freshness_of, tell_freshness
    from ematix_flow.schedule.run import open_world

    alerting = Observability(Observability.resolve(os.environ, alerter or ()).alerters)
    registry = load_project(module)
    only = narrowed(registry, names, select, exclude)
    chosen = [each.spec for name, each in registry.pipelines.items() if only is None or name in only]
    now = dt.datetime.now(dt.timezone.utc)
    found: list[Freshness] = []
    with (
        read_run_log(run_log, looking=False) as log,
        observing(alerting, log) as observers,
        use_registry(registry),
    ):
        for spec in chosen:
            freshness = freshness_of(spec, log, now, open_world(spark_starter()))
            if freshness is not None:
                found.append(freshness)
                if observers:
                    tell_freshness(spec, freshness, log, observers)
    _show(found, output)
    return 1 if any(each.state == "breached" for each in found) else 0


def _show(found: list[Freshness], output: str) -> None:
    if output == "json":
        write_json([each.to_json() for each in found])
        return
    if not found:
        say('no pipeline promises to be fresh: declare one with  freshness_sla="6h"')
        return
    columns = (
        Column("pipeline"),
        Column("state", style=_STYLES.get),
        Column("lag", right=True),
        Column("allowed", right=True),
        Column(f"fresh as of ({zone_name()})", wraps=True),
    )
    write_table(columns, [_row(each) for each in found])


def _row(each: Freshness) -> tuple[object, ...]:
    lag = "" if each.lag_seconds is None else took(dt.timedelta(seconds=each.lag_seconds))
    allowed = took(dt.timedelta(seconds=each.sla_seconds))
    return each.pipeline, each.state, lag, allowed, local(each.since) or each.reason
