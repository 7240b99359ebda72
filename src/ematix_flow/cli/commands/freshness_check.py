"""``flow freshness-check``: shows which pipelines are stale by their freshness_sla."""

from __future__ import annotations

import datetime as dt
import os
from typing import TYPE_CHECKING

from ematix_flow.cli.command_group import new_app
from ematix_flow.cli.local_time import format_duration, format_local_time, local_zone_name
from ematix_flow.cli.options import (
    AlerterOption,
    ExcludeOption,
    ModuleOption,
    NamesArgument,
    OutputOption,
    RunLogOption,
    SelectOption,
)
from ematix_flow.cli.output import OutputColumn, write_json, write_table
from ematix_flow.cli.project import load_project, read_run_log, resolve_pipeline_filter
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
    """Show how fresh each pipeline with a freshness_sla is. Exit code 1 when one is stale.

    With an alerter, one alert is sent when a pipeline becomes stale and one when it is fresh again. Run this
    command regularly, for example by cron.
    """
    from ematix_flow.graph.registry import use_registry
    from ematix_flow.observe.settings import Observability, open_observers
    from ematix_flow.run.context_setup import spark_starter
    from ematix_flow.run.pipeline import open_connections
    from ematix_flow.schedule.freshness import check_freshness, report_freshness

    alerting = Observability(Observability.resolve(os.environ, alerter or ()).alerters)
    registry = load_project(module)
    only = resolve_pipeline_filter(registry, names, select, exclude)
    chosen = [each.spec for name, each in registry.pipelines.items() if only is None or name in only]
    now = dt.datetime.now(dt.timezone.utc)
    found: list[Freshness] = []
    with (
        read_run_log(run_log, read_only=False) as log,
        open_observers(alerting, log) as observers,
        use_registry(registry),
    ):
        for spec in chosen:
            freshness = check_freshness(spec, log, now, open_connections(spark_starter()))
            if freshness is not None:
                found.append(freshness)
                if observers:
                    report_freshness(spec, freshness, log, observers)
    _show_freshness(found, output)
    return 1 if any(each.state == "breached" for each in found) else 0


def _show_freshness(freshness: list[Freshness], output: str) -> None:
    if output == "json":
        write_json([each.to_json() for each in freshness])
        return
    if not freshness:
        say('no pipeline has a freshness_sla: declare one with  freshness_sla="6h"')
        return
    columns = (
        OutputColumn("pipeline"),
        OutputColumn("state", style=_STYLES.get),
        OutputColumn("lag", right=True),
        OutputColumn("allowed", right=True),
        OutputColumn(f"fresh as of ({local_zone_name()})", wraps=True),
    )
    write_table(columns, [_freshness_row(each) for each in freshness])


def _freshness_row(each: Freshness) -> tuple[object, ...]:
    lag = "" if each.lag_seconds is None else format_duration(dt.timedelta(seconds=each.lag_seconds))
    allowed = format_duration(dt.timedelta(seconds=each.sla_seconds))
    return each.pipeline, each.state, lag, allowed, format_local_time(each.since) or each.reason
