"""Results as tables: the same rows for a terminal and for the page of published results."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from rich.table import Table

from benchmarks.cases import CONTESTANTS, DRIVER, FLOW, PROBE
from benchmarks.results import Result, Standing, ratio, standings
from benchmarks.run_log import COMMANDS

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
STATEFUL_COLUMNS = (
    "contestant",
    "events/s",
    "best s",
    "median s",
    "× flow",
    "start s",
    "all s",
    "CPU s",
    "peak MB",
    "state MB, most",
    "state MB, end",
)
RESTART_COLUMNS = (
    "contestant",
    "restart s",
    "median s",
    "× flow",
    "start s",
    "all s",
    "CPU s",
    "fill s",
    "close s",
    "state MB",
    "peak MB",
)
STREAM_COLUMNS = ("contestant", "rows/s", "best s", "median s", "× flow", "start s", "all s", "peak MB")
PROBE_COLUMNS = (
    "contestant",
    "best s",
    "median s",
    "× probe",
    "× by hand",
    "rows/s",
    "again s",
    "CPU s",
    "start s",
    "all s",
    "peak MB",
)
PROBE_LOAD_COLUMNS = (
    "contestant",
    "best requests/s",
    "median requests/s",
    "of ematix_probe's",
    "requests per CPU s",
    "ms, p50 / p99",
    "peak MB",
)
RUN_LOG_COLUMNS = ("command", "best s", "median s", "peak MB")
COLD_START_COLUMNS = ("flow run", "best s", "median s", "peak MB")
TICK_COLUMNS = ("one poll", "best ms", "median ms")
WEB_COLUMNS = ("request", "best ms", "median ms")
VARIANTS = {
    "making": "the first, which makes the archive before it starts",
    "archive": "with the class-data archive",
    "no-archive": "without (EMATIX_FLOW_CDS=off)",
    **{name: f"flow {' '.join(words)}" for name, words in COMMANDS.items()},
}


def heading(result: Result) -> str:
    if result.benchmark in ("changes", "scheduler-tick", "watched-end", "probe-load"):
        return result.title
    return f"{result.title}, {result.rows:,} {'runs' if result.benchmark in ('run-log', 'web') else 'rows'}"


def columns(result: Result) -> tuple[str, ...]:
    if result.benchmark in ("streams", "stateful"):
        return (
            *(STREAM_COLUMNS if result.benchmark == "streams" else STATEFUL_COLUMNS),
            *(f"ms at {int(rate):,}/s" if rate != "1" else "ms, 1 row" for rate in _rates(result)),
        )
    changes = LAKE_CHANGE_COLUMNS if _into_lake(result) else CHANGE_COLUMNS
    own = {
        "copy": COPY_COLUMNS,
        "stateful-restart": RESTART_COLUMNS,
        "changes": changes,
        "scheduler-tick": TICK_COLUMNS,
        "run-log": RUN_LOG_COLUMNS,
        "web": WEB_COLUMNS,
        "probes": PROBE_COLUMNS,
        "probe-load": PROBE_LOAD_COLUMNS,
    }
    return own.get(result.benchmark, COLD_START_COLUMNS)


def rows(result: Result) -> list[list[str]]:
    """Every contestant, the fastest first, in won and lost cases."""
    found = standings(result)
    if result.benchmark in ("cold-start", "run-log", "watched-end"):
        return [
            [VARIANTS.get(s.contestant, s.contestant), *_times(s, result), _memory(s.peak_bytes)]
            for s in found
        ]
    if result.benchmark in ("scheduler-tick", "web"):
        return [[s.contestant, *(f"{1000 * (t or 0):.0f}" for t in (s.best, s.median))] for s in found]
    by_name = {s.contestant: s for s in found}
    flow = by_name.get(FLOW)
    if result.benchmark == "stateful-restart":
        return [
            [
                CONTESTANTS.get(s.contestant, s.contestant),
                *_times(s, result),
                _times_as_long(s, flow, result),
                _seconds(s.start),
                _seconds(s.total),
                _seconds(_detail(result, s, "processor seconds")),
                _seconds(_detail(result, s, "fill seconds")),
                _seconds(_detail(result, s, "close seconds")),
                _memory(_detail(result, s, "state bytes")),
                _memory(s.peak_bytes),
            ]
            for s in found
        ]
    if result.benchmark in ("streams", "stateful"):
        return [
            [
                CONTESTANTS.get(s.contestant, s.contestant),
                f"{result.rows / s.best:,.0f}" if s.best else "",
                *_times(s, result),
                _times_as_long(s, flow, result),
                _seconds(s.start),
                _seconds(s.total),
                *_processor(result, s),
                _memory(s.peak_bytes),
                *_state(result, s),
                *(_latency(result, s, rate) for rate in _rates(result)),
            ]
            for s in found
        ]
    if result.benchmark == "probes":
        return [
            [
                CONTESTANTS.get(s.contestant, s.contestant),
                *_times(s, result),
                _times_as_long(s, by_name.get(PROBE), result),
                _times_as_long(s, by_name.get("sql"), result),
                f"{result.rows / s.best:,.0f}" if s.best else "",
                _seconds(s.again),
                _seconds(_detail(result, s, "first", "processor seconds")),
                _seconds(s.start),
                _seconds(s.total),
                _memory(s.peak_bytes),
            ]
            for s in found
        ]
    if result.benchmark == "probe-load":
        return [_load_row(result, s, by_name.get(PROBE)) for s in found]
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


def _load_row(result: Result, s: Standing, probe: Standing | None) -> list[str]:
    """Requests a second: a run's time is that of ``result.rows`` requests."""

    def rate(seconds: float | None) -> str:
        return f"{result.rows / seconds:,.0f}" if seconds else ""

    times = ratio(s, probe)
    per_processor = [
        run.details["all requests"] / run.details["processor seconds"]
        for run in result.runs
        if run.contestant == s.contestant and run.details.get("processor seconds")
    ]
    latencies = [_detail(result, s, "latency", name) for name in ("p50", "p99")]
    return [
        CONTESTANTS.get(s.contestant, s.contestant),
        rate(s.best) or _times(s, result)[0],
        rate(s.median),
        f"{1 / times:.2f}" if times else "",
        f"{statistics.median(per_processor):,.0f}" if per_processor and s.best else "",
        " / ".join(f"{value:.3g}" for value in latencies if value is not None),
        _memory(s.peak_bytes),
    ]


def remarks(result: Result) -> list[str]:
    """The contestants that were disqualified, stopped, or loaded values in other types."""
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
        kept = _detail(result, s, "bytes next to the target") or 0
        if kept >= 2**20:
            told.append(f"{name}: {_memory(kept, 1)} MB of tables next to the target")
    if result.benchmark == "streams" and FLOW in result.contestants:
        told += _one_row(result)
    return told


def terminal_table(result: Result) -> Table:
    table = Table(title=heading(result), title_justify="left")
    for number, name in enumerate(columns(result)):
        table.add_column(name, justify="left" if number == 0 else "right")
    for row in rows(result):
        table.add_row(*row, style="bold" if row[0] in (CONTESTANTS[FLOW], CONTESTANTS[PROBE]) else None)
    return table


def markdown_table(header: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    aligned = ["---", *("---:" for _ in header[1:])]
    lines = [header, aligned, *body]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _rates(result: Result) -> list[str]:
    """The rates at which messages came; ``1`` is one by one."""
    return sorted({rate for run in result.runs for rate in run.details.get("latency", ())}, key=int)


def _latency(result: Result, s: Standing, rate: str) -> str:
    """Half of the messages, 95 and 99 in a hundred were visible after so many milliseconds."""
    measured = [
        run.details.get("latency", {}).get(rate) for run in result.runs if run.contestant == s.contestant
    ]
    found = [one for one in measured if one is not None]
    if s.problem or not found:
        return ""
    return " / ".join(
        f"{1000 * statistics.median(one[p] for one in found):,.0f}" for p in ("p50", "p95", "p99")
    )


def _processor(result: Result, s: Standing) -> list[str]:
    """The processor time of a stateful stream."""
    return [] if result.benchmark != "stateful" else [_seconds(_detail(result, s, "processor seconds"))]


def _state(result: Result, s: Standing) -> list[str]:
    """The size of the state of a stateful stream: the most that was seen, and at the end."""
    if result.benchmark != "stateful":
        return []
    return [_memory(_detail(result, s, "state bytes", kind), 1) for kind in ("most", "at the end")]


def _detail(result: Result, s: Standing, *path: str) -> float | None:
    """The median of a figure in the details of a contestant's runs; None if it has no result."""
    found: list[float] = []
    for run in result.runs:
        value: Any = run.details if run.contestant == s.contestant else {}
        for name in path:
            value = value.get(name, {})
        if isinstance(value, (int, float)):
            found.append(value)
    return None if s.best is None or not found else statistics.median(found)


def _one_row(result: Result) -> list[str]:
    """What a batch of one row costs ematix-flow, phase by phase; the ledger is a part of apply."""
    batches, seconds = 0, dict[str, float]()
    for run in result.runs:
        told = run.details.get("batches", {}).get("1", {}).get("phases") if run.contestant == FLOW else None
        for phase, taken in told["seconds"].items() if told else ():
            seconds[phase] = seconds.get(phase, 0.0) + taken
        batches += told["batches"] if told else 0
    if not batches:
        return []
    each = {phase: f"{1000 * taken / batches:.1f} ms" for phase, taken in seconds.items()}
    ledger = each.pop("ledger", None)
    parts = ", ".join(f"{phase} {taken}" for phase, taken in each.items())
    share = f"; the ledger's statements are {ledger} of it" if ledger and seconds["ledger"] else ""
    return [f"{CONTESTANTS[FLOW]}: a batch of one row takes {parts}{share}"]


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


def _memory(value: float | None, digits: int = 0) -> str:
    return "" if value is None else f"{value / 2**20:,.{digits}f}"
