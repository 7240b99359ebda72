"""``ematix-probe runs``: shows recorded runs, their trends and differences, and deletes old ones."""

from __future__ import annotations

import datetime as dt
import shlex
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Annotated, Any

import typer

from ematix_probe.cli.history_option import HistoryOption, require_history
from ematix_probe.cli.output import (
    Column,
    OutputOption,
    format_number,
    local_time,
    local_zone,
    sparkline,
    verdict_column,
    verdict_strip,
    write_json,
    write_table,
)
from ematix_probe.cli.terminal import say, style_text, terminal_width, write
from ematix_probe.control_characters import mask_and_escape
from ematix_probe.drift import as_number
from ematix_probe.duration import format_duration, parse_duration
from ematix_probe.errors import UsageError
from ematix_probe.history.records import RecordedAssertion, RecordedRun
from ematix_probe.report import VERDICTS
from ematix_probe.reports.text import STYLES, figures

LIST_HELP = "Show recorded runs, newest first."
SHOW_HELP = "Show everything that is recorded about one run."
TREND_HELP = """Show a probe over time: verdicts and figures of its assertions, oldest run first.

In the verdicts a dot is a pass, w a warning, F a failure, E an error. The chart goes from the least to the
greatest figure.
"""
DIFF_HELP = "Show what changed between two runs. With one run, it is compared with the newest of its probe."
PRUNE_HELP = "Delete recorded runs, but the newest of each probe."

ProbeOption = Annotated[
    str | None, typer.Option("--probe", "-p", metavar="NAME", help="Only runs of this probe.")
]
RunArgument = Annotated[int, typer.Argument(metavar="RUN", help="The number of a run.")]


def list_runs(
    probe: ProbeOption = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Show at most N.")] = 20,
    before: Annotated[
        int | None,
        typer.Option("--before", metavar="RUN", help="Only runs older than this one: the next page."),
    ] = None,
    history: HistoryOption = None,
    output: OutputOption = "text",
) -> None:
    with require_history(history) as opened:
        found = opened.runs(probe, limit=limit, before=before)
        if output == "json":
            write_json([run.to_dict(assertions=False) for run in found])
            return
        if not found:
            say(f"no {'older' if before else 'matching' if probe else 'recorded'} run in {opened.location}")
            return
    columns = (
        Column("run", right=True),
        Column("probe", wraps=True),
        Column("of", wraps=True),
        verdict_column(),
        Column(f"started ({local_zone()})"),
        Column("took", right=True),
        Column("assertions"),
    )
    write_table(columns, [_run_row(run) for run in found])
    if len(found) == limit:
        of = [*(["--probe", probe] if probe else []), *([] if limit == 20 else ["--limit", str(limit)])]
        words = shlex.join(["ematix-probe", "runs", "list", "--before", str(found[-1].id), *of])
        say(f"{words} {opened.option}  shows older ones", "dim")


def _run_row(run: RecordedRun) -> tuple[object, ...]:
    took = format_duration(run.duration_seconds)
    return (
        run.id,
        run.probe_name,
        run.subject,
        run.verdict,
        local_time(run.started_at),
        took,
        _counts(run.counts),
    )


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS if counts.get(verdict))


def show_run(run: RunArgument, history: HistoryOption = None, output: OutputOption = "text") -> None:
    with require_history(history) as opened:
        found = opened.run(run)
    if output == "json":
        write_json(found.to_dict())
        return
    facts = {
        "run": str(found.id),
        "probe": found.probe_name,
        "of": found.subject,
        "verdict": found.verdict,
        "started": f"{local_time(found.started_at)} {local_zone()}",
        "took": format_duration(found.duration_seconds),
        **{
            name: str(value) for name, value in found.metadata.items() if isinstance(value, (str, int, float))
        },
    }
    wide = max(map(len, facts)) + 2
    verdict = style_text(found.verdict, STYLES.get(found.verdict), sys.stdout)
    lines = {name: mask_and_escape(text) for name, text in facts.items()} | {"verdict": verdict}
    write("\n".join(f"{mask_and_escape(name):<{wide}}{text}" for name, text in lines.items()))
    write("")
    columns = (
        Column("assertion", wraps=True),
        verdict_column(),
        Column("message", wraps=True),
        Column("figures", wraps=True),
    )
    write_table(columns, [(a.name, a.verdict, a.message, figures(a.measures)) for a in found.assertions])
    for each in found.assertions:
        for row in each.samples:
            write(f"  {mask_and_escape(each.name)}: {figures(row)}")


def trend(
    probe: Annotated[str, typer.Argument(metavar="PROBE", help="The probe's name.")],
    assertion: Annotated[
        str | None, typer.Argument(metavar="ASSERTION", help="Only this assertion.", show_default=False)
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=2, help="Look at the newest N runs.")] = 30,
    history: HistoryOption = None,
    output: OutputOption = "text",
) -> None:
    with require_history(history) as opened:
        found = opened.trend(probe, assertion, limit=limit)
    if output == "json":
        write_json(
            {
                "probe": found.probe,
                "runs": [run.to_dict(assertions=False) for run in found.runs],
                "assertions": [asdict(each) for each in found.assertions],
            }
        )
        return
    first, last = found.runs[0], found.runs[-1]
    number = f"{len(found.runs)} runs" if len(found.runs) > 1 else "1 run"
    what = f"{mask_and_escape(found.probe)} ({mask_and_escape(last.subject)})"
    write(f"{what}: {number}, {local_time(first.started_at)} … {local_time(last.started_at)} {local_zone()}")
    write(f"{'verdict':<11}{verdict_strip([run.verdict for run in found.runs])}")
    durations = sparkline([run.duration_seconds for run in found.runs])
    write(f"{'duration':<11}{durations}  {format_duration(last.duration_seconds)}")
    write("")
    columns = (
        Column("assertion", wraps=True),
        Column("verdicts"),
        Column("figure"),
        Column("chart"),
        Column("last", right=True),
        Column("least", right=True),
        Column("greatest", right=True),
    )
    room = terminal_width(sys.stdout)
    kept = len(found.runs) if room is None else max(8, min(len(found.runs), (room - 66) // 2))
    rows: list[tuple[object, ...]] = []
    for each in found.assertions:
        name, strip = each.name, verdict_strip(each.verdicts)[-kept:]
        for figure, values in each.measures.items() or {"": ()}.items():
            numbers = [as_number(value) for value in values]
            known = [value for value in numbers if value is not None]
            ends = (numbers[-1] if numbers else None, min(known, default=None), max(known, default=None))
            rows.append((name, strip, figure, sparkline(numbers[-kept:]), *map(format_number, ends)))
            name = strip = ""
    write_table(columns, rows)


def diff(
    run: RunArgument,
    other: Annotated[
        int | None, typer.Argument(metavar="OTHER", help="The run to compare with.", show_default=False)
    ] = None,
    history: HistoryOption = None,
    output: OutputOption = "text",
) -> None:
    with require_history(history) as opened:
        one = opened.run(run)
        if other is None:
            newest = opened.runs(one.probe_name, limit=1)[0]
            if newest.id == one.id:
                earlier = opened.runs(one.probe_name, limit=1, before=one.id)
                if not earlier:
                    raise UsageError(
                        f"run {run} is the only one of {one.probe_name!r}",
                        next_step="name two runs to compare",
                    )
                one, newest = opened.run(earlier[0].id), one
            other = newest.id
        two = opened.run(other)
    changes = list(changes_between(one, two))
    if output == "json":
        write_json(
            {"from": one.to_dict(assertions=False), "to": two.to_dict(assertions=False), "changes": changes}
        )
        return
    for name, each in (("from", one), ("to", two)):
        verdict = style_text(each.verdict, STYLES.get(each.verdict), sys.stdout)
        what = f"{mask_and_escape(each.probe_name)} ({mask_and_escape(each.subject)})"
        write(f"{name:<6}run {each.id}, {what}, {local_time(each.started_at)}: {verdict}")
    write("")
    if not changes:
        write("no verdict and no figure changed")
        return
    columns = (
        Column("assertion", wraps=True),
        Column("what"),
        Column("before", right=True, style=STYLES.get),
        Column("after", right=True, style=STYLES.get),
        Column("change", right=True),
    )
    write_table(
        columns,
        [
            (each["assertion"], each["what"], _shown(each["before"]), _shown(each["after"]), _change(each))
            for each in changes
        ],
    )


def changes_between(one: RecordedRun, two: RecordedRun) -> Iterator[dict[str, Any]]:
    """What is different: assertions that came or went, verdicts, figures."""
    before = {each.name: each for each in one.assertions}
    after = {each.name: each for each in two.assertions}
    for name in dict.fromkeys([*before, *after]):
        old, new = before.get(name), after.get(name)
        if old is None or new is None or old.verdict != new.verdict:
            verdicts = [None if each is None else each.verdict for each in (old, new)]
            yield {"assertion": name, "what": "verdict", "before": verdicts[0], "after": verdicts[1]}
        yield from _changed_figures(name, old, new)


def _changed_figures(
    name: str, old: RecordedAssertion | None, new: RecordedAssertion | None
) -> Iterator[dict[str, Any]]:
    if old is None or new is None:
        return
    for figure in dict.fromkeys([*old.measures, *new.measures]):
        values = old.measures.get(figure), new.measures.get(figure)
        if values[0] != values[1]:
            yield {"assertion": name, "what": figure, "before": values[0], "after": values[1]}


def _shown(value: Any) -> str:
    if value is None:
        return "–"
    number = None if isinstance(value, str) and value in VERDICTS else as_number(value)
    return str(value) if number is None else format_number(number)


def _change(change: Mapping[str, Any]) -> str:
    old, new = as_number(change["before"]), as_number(change["after"])
    if old is None or new is None:
        return ""
    return f"{(new - old) / abs(old) * 100:+,.1f} %" if old else f"{new - old:+,g}"


def prune(
    keep: Annotated[
        int, typer.Option("--keep", metavar="N", min=1, help="Keep the newest N runs of each probe.")
    ],
    older_than: Annotated[
        str | None,
        typer.Option(
            "--older-than", metavar="DURATION", help="Delete only runs that started longer ago: 90d, 36h."
        ),
    ] = None,
    probe: ProbeOption = None,
    history: HistoryOption = None,
    output: OutputOption = "text",
) -> None:
    age = None
    if older_than is not None:
        try:
            age = dt.timedelta(seconds=parse_duration(older_than))
        except ValueError as error:
            raise UsageError(f"--older-than: {error}") from None
    with require_history(history) as opened:
        deleted = opened.prune(keep=keep, older_than=age, probe=probe)
        place = opened.location
    if output == "json":
        write_json({"history": place, "deleted": deleted})
        return
    say(f"deleted {deleted:,} run{'' if deleted == 1 else 's'} in {place}")
