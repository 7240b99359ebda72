"""Results as tables: the same rows for a terminal and for the page of published results."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from benchmarks.cases import CONTESTANTS, DRIVER, FLOW
from benchmarks.results import Result, Standing, ratio, standings

COPY_COLUMNS = (
    "contestant",
    "best s",
    "median s",
    "× flow",
    "× drivers",
    "rows/s",
    "again s",
    "start s",
    "all s",
    "peak MB",
)
CHANGE_COLUMNS = (
    "contestant",
    "best s",
    "median s",
    "× flow",
    "× SQL",
    "changes/s",
    "start s",
    "all s",
    "peak MB",
)
LAKE_CHANGE_COLUMNS = tuple("× delta-rs" if name == "× SQL" else name for name in CHANGE_COLUMNS)
COLD_START_COLUMNS = ("flow run", "best s", "median s", "peak MB")
VARIANTS = {
    "making": "the first, which makes the archive before it starts",
    "archive": "with the class-data archive",
    "no-archive": "without (EMATIX_FLOW_CDS=off)",
}


def heading(result: Result) -> str:
    return result.title if result.benchmark == "changes" else f"{result.title}, {result.rows:,} rows"


def columns(result: Result) -> tuple[str, ...]:
    changes = LAKE_CHANGE_COLUMNS if _into_lake(result) else CHANGE_COLUMNS
    return {"copy": COPY_COLUMNS, "changes": changes}.get(result.benchmark, COLD_START_COLUMNS)


def rows(result: Result) -> list[list[str]]:
    """Every contestant, the fastest first; a lost race stands there like a won one."""
    found = standings(result)
    if result.benchmark == "cold-start":
        return [
            [VARIANTS.get(s.contestant, s.contestant), *_times(s, result), _memory(s.peak_bytes)]
            for s in found
        ]
    by_name = {s.contestant: s for s in found}
    flow = by_name.get(FLOW)
    by_hand = "delta-rs" if _into_lake(result) else "sql"
    other = by_name.get(DRIVER if result.benchmark == "copy" else by_hand)
    return [
        [
            CONTESTANTS.get(s.contestant, s.contestant),
            *_times(s, result),
            _times_as_long(s, flow, result),
            _times_as_long(s, other, result),
            f"{result.rows / s.best:,.0f}" if s.best else "",
            *([_seconds(s.again)] if result.benchmark == "copy" else []),
            _seconds(s.start),
            _seconds(s.total),
            _memory(s.peak_bytes),
        ]
        for s in found
    ]


def remarks(result: Result) -> list[str]:
    """Who was disqualified, stopped, or brought values in other types."""
    told = []
    for s in standings(result):
        name = CONTESTANTS.get(s.contestant, VARIANTS.get(s.contestant, s.contestant))
        if s.problem:
            told.append(f"{name}: disqualified, {s.problem}")
        if s.over_limit:
            told.append(f"{name}: stopped after {result.limit_seconds:g} s and not tried again")
        elif s.best is not None and s.runs < max(run.round for run in result.runs):
            told.append(f"{name}: {s.runs} round only, as it takes so long")
        told += [f"{name}: {note}" for note in s.notes]
    return told


def terminal_table(result: Result) -> Table:
    table = Table(title=heading(result), title_justify="left")
    for number, name in enumerate(columns(result)):
        table.add_column(name, justify="left" if number == 0 else "right")
    for row in rows(result):
        table.add_row(*row, style="bold" if row[0] == CONTESTANTS[FLOW] else None)
    return table


def markdown_table(header: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    aligned = ["---", *("---:" for _ in header[1:])]
    lines = [header, aligned, *body]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _into_lake(result: Result) -> bool:
    return result.case.startswith("delta-")


def _times(s: Standing, result: Result) -> tuple[str, str]:
    if s.problem:
        return "disqualified", ""
    if s.over_limit:
        return f"over {result.limit_seconds:g}", ""
    return _seconds(s.best), _seconds(s.median)


def _times_as_long(s: Standing, reference: Standing | None, result: Result) -> str:
    if s.over_limit and reference is not None and reference.best:
        return f"over {result.limit_seconds / reference.best:.1f}"
    value = ratio(s, reference)
    return "" if value is None else f"{value:.2f}"


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _memory(value: int | None) -> str:
    return "" if value is None else f"{value / 2**20:,.0f}"
