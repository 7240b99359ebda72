"""``flow maintain``: compacts lake tables and removes files that are no longer needed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from ematix_flow.cli.command_group import new_app
from ematix_flow.cli.error_report import show_error
from ematix_flow.cli.options import (
    AllOption,
    EngineOption,
    ExcludeOption,
    ModuleOption,
    NamesArgument,
    OutputOption,
    RunLogOption,
    SelectOption,
)
from ematix_flow.cli.output import OutputColumn, format_count, format_size, write_json, write_table
from ematix_flow.cli.project import load_project, resolve_pipelines
from ematix_flow.cli.step_progress import show_steps
from ematix_flow.cli.terminal import say
from ematix_flow.spec.durations import parse_duration

if TYPE_CHECKING:
    from ematix_flow.backends.maintenance import MaintenanceReport
    from ematix_flow.run.maintenance import MaintenanceOutcome

app = new_app()


@app.command()
def maintain(
    names: NamesArgument = None,
    everything: AllOption = False,
    select: SelectOption = None,
    exclude: ExcludeOption = None,
    module: ModuleOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be done. Changes nothing.")
    ] = False,
    retain: Annotated[
        str | None,
        typer.Option(
            "--retain",
            metavar="DURATION",
            help="How long to keep files of old versions: 7d, 36h. Without it: the table's own setting, "
            "which is 7 days by default.",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Allow a --retain of less than 7 days.")] = False,
    zorder: Annotated[
        str | None,
        typer.Option(
            "--zorder", metavar="COLUMNS", help="Cluster rows by these columns, such as day,customer."
        ),
    ] = None,
    engine: EngineOption = None,
    run_log: RunLogOption = None,
    output: OutputOption = "text",
) -> int:
    """Compact small files of lake tables, remove old ones, and tidy their journals and histories.

    Loads of a table wait while it is compacted. Readers are not affected.
    """
    from ematix_flow.backends.maintenance import MaintenanceOptions
    from ematix_flow.run.context_setup import spark_starter
    from ematix_flow.run.maintenance import maintain_pipelines, require_lakes

    columns = tuple(part.strip() for part in (zorder or "").split(",") if part.strip())
    retention = None if retain is None else parse_duration("--retain", retain)
    options = MaintenanceOptions(retention, columns, dry_run=dry_run, force=force)
    registry = load_project(module)
    chosen = resolve_pipelines(registry, names, everything=everything, select=select, exclude=exclude)
    pipelines = [registry.pipeline(name) for name in chosen]
    spark = spark_starter(engine)
    if names:
        require_lakes(pipelines, spark)
    if options.is_below_safe_retention and not dry_run:
        say(
            f"warning: a reader or writer that still uses a version older than {retain} will fail",
            "yellow",
        )
    with show_steps() as at:
        outcomes = list(maintain_pipelines(pipelines, spark, options, run_log=run_log, before=at))
    failed = [outcome for outcome in outcomes if outcome.error is not None]
    if output == "json":
        write_json([outcome.to_json() for outcome in outcomes])
    else:
        _write_outcomes(outcomes, dry_run=dry_run)
        for outcome in failed:
            assert outcome.error is not None
            show_error(outcome.error, outcome.target)
    if dry_run:
        say("dry run: nothing was changed")
    if len(outcomes) == 1 and failed:
        assert failed[0].error is not None
        return failed[0].error.exit_code
    return 1 if failed else 0


def _write_outcomes(outcomes: Sequence[MaintenanceOutcome], *, dry_run: bool) -> None:
    from ematix_flow.run.maintenance import table_label

    if not outcomes:
        say("no pipeline of the module loads a lake table")
    rows = [
        (table_label(outcome.target, table), *_table_row(table))
        for outcome in outcomes
        for table in outcome.tables
    ]
    if rows:
        columns = (
            OutputColumn("table"),
            OutputColumn("files", right=True),
            OutputColumn("to compact" if dry_run else "now", right=True),
            OutputColumn("size", right=True),
            *(() if dry_run else (OutputColumn("now", right=True),)),
            OutputColumn("to remove" if dry_run else "removed", right=True),
            OutputColumn("frees" if dry_run else "freed", right=True),
            OutputColumn("events", right=True),
            OutputColumn("journal", right=True),
        )
        kept = [
            place for place in range(len(columns)) if place < len(columns) - 2 or _has_values(rows, place)
        ]
        write_table([columns[place] for place in kept], [[row[place] for place in kept] for row in rows])
    for outcome in outcomes:
        if outcome.reason:
            say(f"{outcome.target}: {outcome.reason}")


def _table_row(table: MaintenanceReport) -> tuple[str, ...]:
    before, after = table.before, table.after
    return (
        format_count(before.files),
        format_count(table.small if after is None else after.files),
        format_size(before.bytes),
        *(() if after is None else (format_size(after.bytes),)),
        format_count(table.removed.files),
        format_size(table.removed.bytes),
        f"{table.events:,} rows" if table.events else "",
        f"{table.entries:,} folded" if table.entries else "",
    )


def _has_values(rows: Sequence[tuple[str, ...]], place: int) -> bool:
    return any(row[place] for row in rows)
