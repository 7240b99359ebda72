"""``flow quarantine``: the rows that failed an expectation and were set aside."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ematix_flow.cli.command_group import new_app
from ematix_flow.cli.error_report import show_error
from ematix_flow.cli.expectation_tables import expectations_text
from ematix_flow.cli.local_time import format_duration, format_local_time, local_zone_name
from ematix_flow.cli.options import (
    EngineOption,
    ModuleOption,
    NameArgument,
    NamesArgument,
    OutputOption,
    RunLogOption,
)
from ematix_flow.cli.output import OutputColumn, write_json, write_table, write_text
from ematix_flow.cli.project import load_project
from ematix_flow.cli.terminal import is_terminal, say, write
from ematix_flow.errors import FlowError, UnknownName, UsageError, did_you_mean
from ematix_flow.spec.expectations import (
    POSITION,
    QUARANTINE_BATCH,
    QUARANTINE_COLUMNS,
    QUARANTINED_AT,
    RULE,
    bounded_sample,
)
from ematix_flow.state.times import utc_now

if TYPE_CHECKING:
    from ematix_flow.backends.gated_target import QuarantineCount
    from ematix_flow.engine.planning.quarantine_plans import QuarantinePlace
    from ematix_flow.graph.registry import Registry
    from ematix_flow.run.quarantine import Quarantine
    from ematix_flow.spec.pipelines import PipelineSpec
    from ematix_flow.spec.streams import StreamSpec

from ematix_probe.control_characters import mask_and_escape
from ematix_probe.wording import share_of_rows

app = new_app("Show the rows that failed an expectation and were set aside; replay or purge them.")

RuleOption = Annotated[
    str | None, typer.Option("--rule", metavar="NAME", help="Only rows of this expectation.")
]
BatchOption = Annotated[
    str | None,
    typer.Option("--batch", metavar="ID", help="Only rows of this batch; the first characters are enough."),
]
TargetOption = Annotated[
    str | None, typer.Option("--target", metavar="NAME", help="Only rows of this target.")
]
TableOption = Annotated[
    str | None,
    typer.Option(
        "--quarantine-table",
        metavar="NAME",
        help="The quarantine table, if it is not the one that is declared now.",
    ),
]


@app.command("list")
def list_rows(
    names: NamesArgument = None,
    module: ModuleOption = None,
    table: TableOption = None,
    engine: EngineOption = None,
    output: OutputOption = "text",
) -> int:
    """Show how many rows are in quarantine, by rule and batch.

    Without a name: of all pipelines and streams that set rows aside.
    """
    registry = load_project(module)
    found: list[tuple[QuarantinePlace, QuarantineCount]] = []
    failed: list[FlowError] = []
    for name in names or _pipelines_with_quarantine(registry):
        try:
            found += _open(registry, name, engine, table=table).counts()
        except FlowError as error:
            if names:
                raise
            failed.append(error)
            show_error(error, name)
    if output == "json":
        write_json([_count_json(place, count) for place, count in found])
    elif found:
        _write_counts(found, module, table)
    elif not failed:
        say("no row is in quarantine")
    return max((error.exit_code for error in failed), default=0)


@app.command("show")
def show_rows(
    name: NameArgument,
    rule: RuleOption = None,
    batch: BatchOption = None,
    target: TargetOption = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=10_000, help="Show at most N.")] = 20,
    offset: Annotated[int, typer.Option("--offset", min=0, help="Skip the first N.")] = 0,
    module: ModuleOption = None,
    table: TableOption = None,
    engine: EngineOption = None,
    output: OutputOption = "text",
) -> None:
    """Show rows in quarantine, oldest first."""
    from ematix_probe.report import as_json

    quarantine = _open(load_project(module), name, engine, rule, batch, target, table)
    rows, total = quarantine.show(limit, offset)
    if output == "json":
        write_json(
            [
                {"target": place.label, **{key: as_json(value) for key, value in row.items()}}
                for place, row in rows
            ]
        )
    elif rows:
        columns = (
            OutputColumn(f"set aside ({local_zone_name()})"),
            OutputColumn("rule"),
            OutputColumn("batch"),
            OutputColumn("position"),
            OutputColumn("row", wraps=True),
        )
        write_table(columns, [_row_cells(row) for _, row in rows])
    else:
        say(f"no row of {name!r} is in quarantine" if not total else f"there are only {total:,} such rows")
    if rows and offset + len(rows) < total:
        say(f"{len(rows):,} of {total:,}; --limit and --offset show more")


@app.command("replay")
def replay_rows(
    name: NameArgument,
    rule: RuleOption = None,
    batch: BatchOption = None,
    target: TargetOption = None,
    module: ModuleOption = None,
    table: TableOption = None,
    engine: EngineOption = None,
    run_log: RunLogOption = None,
    output: OutputOption = "text",
) -> int:
    """Load rows again through the expectations as they are declared now. Rows that fail again stay."""
    quarantine = _open(load_project(module), name, engine, rule, batch, target, table)
    result = quarantine.replay(run_log, note=say if output == "text" else lambda _: None)
    if output == "json":
        write_json(result.to_json())
    elif not result.targets:
        say(f"no row of {name!r} is in quarantine")
    else:
        read = result.rows_read or 0
        text = f"{share_of_rows(read - result.rows_quarantined, read)} replayed"
        write_text(text + (f", {result.rows_quarantined:,} failed again" if result.rows_quarantined else ""))
        found = expectations_text(result.to_json()["targets"], stream=sys.stdout)
        if found:
            write(found, sys.stdout)
    return 1 if result.rows_quarantined else 0


@app.command("purge")
def purge_rows(
    name: NameArgument,
    rule: RuleOption = None,
    batch: BatchOption = None,
    target: TargetOption = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    module: ModuleOption = None,
    table: TableOption = None,
    engine: EngineOption = None,
    output: OutputOption = "text",
) -> None:
    """Delete rows from quarantine permanently."""
    quarantine = _open(load_project(module), name, engine, rule, batch, target, table)
    chosen = quarantine.choose()
    count = sum(each.rows for each in chosen)
    if count and not yes:
        _confirm(f"delete {_rows_text(count)} of {name!r} permanently?")
    purged = quarantine.purge(chosen)
    if output == "json":
        write_json({"pipeline": name, "purged": purged})
    else:
        write_text(f"{_rows_text(purged)} of {name} purged")


# ------------------------------------------------------------------ which rows


def _open(
    registry: Registry,
    name: str,
    engine: str | None,
    rule: str | None = None,
    batch: str | None = None,
    target: str | None = None,
    table: str | None = None,
) -> Quarantine:
    from ematix_flow.run.context_setup import spark_starter
    from ematix_flow.run.quarantine import Quarantine, QuarantineChoice

    choice = QuarantineChoice(rule, batch, target, table)
    return Quarantine(_spec(registry, name), spark_starter(engine), choice)


def _spec(registry: Registry, name: str) -> PipelineSpec | StreamSpec:
    if name in registry.streams:
        return registry.stream(name).spec
    if name in registry.pipelines:
        return registry.pipeline(name).spec
    known = (*registry.pipelines, *registry.streams)
    raise UnknownName(
        f"no pipeline or stream is named {name!r}.{did_you_mean(name, known)}",
        next_step="flow list  and  flow consume-list  show what the module declares",
    )


def _pipelines_with_quarantine(registry: Registry) -> list[str]:
    specs: list[PipelineSpec | StreamSpec] = [each.spec for each in registry.pipelines.values()]
    specs += [each.spec for each in registry.streams.values()]
    found = [spec for spec in specs if spec.expectations.sets_aside]
    return [spec.name for spec in found if not spec.expectations.to_dead_letters]


def _confirm(question: str) -> None:
    if not is_terminal(sys.stdin):
        raise UsageError(
            "cannot ask for confirmation without a terminal",
            state="nothing was changed",
            next_step="give --yes",
        )
    if not typer.confirm(question, err=True):
        raise UsageError("not confirmed", state="nothing was changed")


# ------------------------------------------------------------------ as a person reads it


def _rows_text(count: int) -> str:
    return f"{count:,} quarantined row{'' if count == 1 else 's'}"


def _count_json(place: QuarantinePlace, count: QuarantineCount) -> dict[str, Any]:
    return {
        "pipeline": place.pipeline,
        "target": place.label,
        "table": place.table.label,
        "rule": count.rule,
        "batch": count.batch,
        "rows": count.rows,
        "oldest": count.oldest.isoformat(),
        "newest": count.newest.isoformat(),
    }


def _write_counts(
    found: list[tuple[QuarantinePlace, QuarantineCount]], module: str | None, table: str | None
) -> None:
    now = utc_now()
    columns = (
        OutputColumn("pipeline"),
        OutputColumn("target"),
        OutputColumn("rule"),
        OutputColumn("batch"),
        OutputColumn("rows", right=True),
        OutputColumn(f"set aside ({local_zone_name()})"),
        OutputColumn("age"),
    )
    write_table(
        columns,
        [
            (
                mask_and_escape(place.pipeline),
                mask_and_escape(place.label),
                mask_and_escape(count.rule),
                count.batch[:8],
                f"{count.rows:,}",
                format_local_time(count.oldest),
                format_duration(now - count.oldest),
            )
            for place, count in found
        ],
    )
    say(f"{_rows_text(sum(count.rows for _, count in found))}")
    given = {"--module": module, "--quarantine-table": table}
    options = [word for option, value in given.items() if value for word in (option, value)]
    of = shlex.join([found[0][0].pipeline, *options])
    say(f"flow quarantine show {of}  shows rows;  flow quarantine replay {of}  loads them again")


def _row_cells(row: Mapping[str, Any]) -> tuple[object, ...]:
    values = bounded_sample({key: value for key, value in row.items() if key not in QUARANTINE_COLUMNS})
    return (
        format_local_time(row[QUARANTINED_AT]),
        mask_and_escape(str(row[RULE])),
        str(row[QUARANTINE_BATCH])[:8],
        mask_and_escape(str(row[POSITION] or "")),
        mask_and_escape(", ".join(f"{key}={value!r}" for key, value in values.items())),
    )
