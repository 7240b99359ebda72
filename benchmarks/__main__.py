"""``python -m benchmarks``: measure, list, publish. Without a command everything is measured in full."""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterable, Sequence

from rich.console import Console

from benchmarks.cases import CASES, CHANGES, CONTESTANTS, FLOW, PROBE, PROBES, STATEFUL, STREAMS
from benchmarks.datasets import DATA, DATASETS, ORDERS
from benchmarks.machine import busy
from benchmarks.results import FOLDER, Result, save, standing
from benchmarks.run_log import RUNS, STORES
from benchmarks.tables import remarks, terminal_table

TRIALS = DATA / "trials"
LIMIT_SECONDS = 900.0
REPEAT = 3
WIDTH = 120  # of output that goes to a file or a pipe


def parser() -> argparse.ArgumentParser:
    main = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    main.add_argument("--list", action="store_true", help="list cases and contestants")
    main.add_argument(
        "--publish", action="store_true", help="write the saved results into docs/how-it-works/benchmarks.md"
    )
    commands = main.add_subparsers(dest="command", metavar="COMMAND")
    copy = commands.add_parser("copy", help="copy a table between two systems, against rivals")
    copy.add_argument("--table", choices=DATASETS, default=ORDERS.name, help="default: %(default)s")
    copy.add_argument("--rows", type=_positive, help="default: all of the published size")
    copy.add_argument("--case", action="append", choices=CASES, help="only this; may be given again")
    changes = commands.add_parser("changes", help="load changes into an existing table, against rivals")
    changes.add_argument("--case", action="append", choices=CHANGES, help="only this; may be given again")
    changes.add_argument(
        "--size",
        action="append",
        metavar="CHANGES/ROWS",
        help="how many changes into how many rows; may be given again; default: the published sizes",
    )
    streams = commands.add_parser("streams", help="follow a broker, against rivals")
    streams.add_argument("--case", action="append", choices=STREAMS, help="only this; may be given again")
    streams.add_argument("--rows", type=_positive, help="messages that are there before; default: 500,000")
    streams.add_argument("--rate", type=_positive, nargs="+", help="a second; default: 1,000 and 10,000")
    streams.add_argument("--seconds", type=float, help="how long each rate is held; default: 20")
    streams.add_argument("--singles", type=_positive, help="messages that come one by one; default: 50")
    stateful = commands.add_parser("stateful", help="windows, sessions, joins, change events, against rivals")
    stateful.add_argument("--case", action="append", choices=STATEFUL, help="only this; may be given again")
    stateful.add_argument("--rows", type=_positive, help="messages that are there before; default: by case")
    stateful.add_argument("--rate", type=_positive, help="messages a second; default: 1,000")
    stateful.add_argument("--seconds", type=float, help="how long the rate is held; default: 40")
    probes = commands.add_parser("probes", help="check ten assertions about a table, against rivals")
    probes.add_argument("--case", action="append", choices=PROBES, help="only this; may be given again")
    probes.add_argument("--rows", type=_positive, help="default: 10,000,000")
    load = commands.add_parser("probe-load", help="send requests to a server, against rivals")
    load.add_argument("--seconds", type=float, help="how long each sends; default: 15")
    load.add_argument("--users", type=_positive, help="that send at the same time; default: 32")
    cold = commands.add_parser("cold-start", help="time of a cold  flow run")
    ticks = commands.add_parser("scheduler-tick", help="time of one poll of  flow scheduler")
    ends = commands.add_parser("watched-end", help="how much later  flow run  ends if receivers hang")
    log = commands.add_parser("run-log", help="commands about 1,000 pipelines with a million recorded runs")
    log.add_argument("--store", action="append", choices=STORES, help="only this; may be given again")
    log.add_argument("--rows", type=_positive, default=RUNS, help="recorded runs; default: %(default)s")
    web = commands.add_parser("web", help="flow web about a million recorded runs, and Dagster's page")
    web.add_argument("--store", action="append", choices=STORES, help="only this; may be given again")
    web.add_argument("--rows", type=_positive, default=RUNS, help="recorded runs; default: %(default)s")
    for command in (copy, changes, streams, stateful, probes, load):
        command.add_argument(
            "--contestant", action="append", choices=CONTESTANTS, help="only this; may be given again"
        )
        command.add_argument(
            "--restart", action="store_true", help="ignore what an interrupted run has measured"
        )
    for command in (copy, changes, streams, stateful, probes, load, cold, ticks, ends, log, web):
        command.add_argument("--repeat", type=_positive, default=REPEAT, help="rounds; default: %(default)s")
        command.add_argument(
            "--limit",
            type=float,
            default=LIMIT_SECONDS,
            help="seconds after which a load is stopped; default: %(default)g",
        )
        command.add_argument("--seed", type=int, help="of the order of contestants; default: a new one")
    return main


def main(arguments: Sequence[str] | None = None) -> int:
    given = parser().parse_args(arguments)
    console = Console()
    if not console.is_terminal:
        console.width = WIDTH
    if given.list:
        _list(console)
        return 0
    if given.publish:
        from benchmarks.publish import publish

        console.print(f"published {publish()} results in docs/how-it-works/benchmarks.md")
        return 0
    if busy():
        console.print("[yellow]Others compute on this machine now: these figures will say little.[/]")
    if given.command is None:
        everything = (
            *(["copy"], ["copy", "--table", "lineitem"], ["changes"], ["streams"], ["stateful"]),
            *(["probes"], ["probe-load"], ["cold-start"], ["scheduler-tick"], ["watched-end"], ["run-log"]),
            ["web"],
        )
        return max(_measure(console, parser().parse_args(one)) for one in everything)
    return _measure(console, given)


def _measure(console: Console, given: argparse.Namespace) -> int:
    from benchmarks.cold_start import run_cold_start
    from benchmarks.rounds import Settings

    seed = random.randrange(2**32) if given.seed is None else given.seed

    def say(text: str) -> None:
        console.print(text, markup=False, highlight=False)

    if given.command == "cold-start":
        say("Cold start")
        return _report(console, [run_cold_start(given.repeat, given.limit, seed, say)], full=True)
    if given.command == "scheduler-tick":
        from benchmarks.scheduler_ticks import run_scheduler_ticks

        say("One poll of the scheduler")
        return _report(console, [run_scheduler_ticks(given.repeat, say)], full=True)
    if given.command == "watched-end":
        from benchmarks.watched_ends import run_watched_ends

        say("The end of a run that is watched in vain")
        return _report(console, [run_watched_ends(given.repeat, given.limit, seed, say)], full=True)
    if given.command == "run-log":
        from benchmarks.run_log import run_log_benchmark

        say("Run log")
        stores = given.store or STORES
        found = run_log_benchmark(stores, given.rows, given.repeat, given.limit, seed, say)
        return _report(console, found, full=given.rows == RUNS)
    if given.command == "web":
        from benchmarks.web_requests import run_web_benchmark

        say("Requests to flow web")
        answered = run_web_benchmark(given.store or STORES, given.rows, given.repeat, say)
        return _report(console, answered, full=given.rows == RUNS)
    contestants = tuple(given.contestant) if given.contestant else None
    everyone = contestants is None
    if given.command == "changes":
        from benchmarks.change_loads import PUBLISHED, Size, run_changes

        sizes = [Size.read(text) for text in given.size] if given.size else None
        settings = Settings(0, given.repeat, given.limit, seed, contestants, given.restart)
        results = run_changes([CHANGES[name] for name in given.case or CHANGES], sizes, settings, say)
        return _report(console, results, full=everyone and set(sizes or ()) <= set(PUBLISHED))
    if given.command == "streams":
        from benchmarks.stream_loads import ROWS as MESSAGES
        from benchmarks.stream_loads import Pace, run_streams

        told = {"rates": given.rate and tuple(given.rate), "seconds": given.seconds, "singles": given.singles}
        pace = Pace(**{name: value for name, value in told.items() if value is not None})
        published = pace == Pace() and (given.rows or MESSAGES) == MESSAGES
        restart = given.restart or not published
        settings = Settings(given.rows or MESSAGES, given.repeat, given.limit, seed, contestants, restart)
        followed = run_streams([STREAMS[name] for name in given.case or STREAMS], pace, settings, say)
        return _report(console, followed, full=everyone and published)
    if given.command == "stateful":
        from benchmarks.stateful_loads import run_stateful
        from benchmarks.stateful_runs import RATE, SECONDS, SteadyRate

        steady = SteadyRate(given.rate or RATE, given.seconds or SECONDS)
        published = steady == SteadyRate() and given.rows is None
        restart = given.restart or not published
        settings = Settings(0, given.repeat, given.limit, seed, contestants, restart)
        cases = [STATEFUL[name] for name in given.case or STATEFUL]
        found = run_stateful(cases, given.rows, steady, settings, say)
        return _report(console, found, full=everyone and published)
    if given.command == "probes":
        from benchmarks.probe_data import ROWS
        from benchmarks.probe_runs import run_probes

        rows = given.rows or ROWS
        restart = given.restart or rows != ROWS
        settings = Settings(rows, given.repeat, given.limit, seed, contestants, restart)
        found = run_probes([PROBES[name] for name in given.case or PROBES], settings, say)
        return _report(console, found, full=everyone and rows == ROWS)
    if given.command == "probe-load":
        from benchmarks.probe_load_runs import SECONDS, USERS, LoadPlan, run_probe_load

        plan = LoadPlan(given.users or USERS, given.seconds or SECONDS)
        published = plan == LoadPlan()
        restart = given.restart or not published
        settings = Settings(0, given.repeat, given.limit, seed, contestants, restart)
        return _report(console, [run_probe_load(plan, settings, say)], full=everyone and published)
    from benchmarks.copy_loads import run_cases

    dataset = DATASETS[given.table]
    rows = given.rows or dataset.full_rows
    settings = Settings(rows, given.repeat, given.limit, seed, contestants, given.restart)
    copied = run_cases([CASES[name] for name in given.case or CASES], dataset, settings, say)
    return _report(console, copied, full=everyone and rows >= dataset.full_rows)


def _report(console: Console, results: Iterable[Result], *, full: bool) -> int:
    """Print and save each result as it comes. Only results of full data are saved for publication."""
    from benchmarks.rounds import finished

    failed = False
    for result in results:
        console.print()
        console.print(terminal_table(result))
        for remark in remarks(result):
            console.print(f"  {remark}", markup=False, highlight=False)
        file = save(result, FOLDER if full else TRIALS)
        finished(result)
        console.print(f"  saved as {file.relative_to(DATA.parent.parent)}", markup=False, highlight=False)
        failed |= any(
            standing(result, name).problem is not None for name in result.contestants if name in (FLOW, PROBE)
        )
    return 1 if failed else 0


def _list(console: Console) -> None:
    listed = [("copy", case) for case in CASES.values()] + [("changes", case) for case in CHANGES.values()]
    listed += [("streams", case) for case in STREAMS.values()]
    listed += [("stateful", case) for case in STATEFUL.values()]
    listed += [("probes", case) for case in PROBES.values()]
    for command, case in listed:
        console.print(f"{command} --case {case.name}: {case.title}", highlight=False)
        for name in case.contestants:
            console.print(f"    {name:<13} {CONTESTANTS[name]}", highlight=False)
        for name, reason in case.left_out.items():
            console.print(f"    without {CONTESTANTS[name]}: {reason}", highlight=False)
    console.print("probe-load: requests a second on one core", highlight=False)
    console.print(
        "cold-start: flow run of 1,000 rows, with and without the class-data archive", highlight=False
    )
    console.print("scheduler-tick: one poll of flow scheduler over 1,000 pipelines", highlight=False)
    console.print(
        "watched-end: flow run with alerters, metrics and traces whose receivers fail", highlight=False
    )
    console.print(
        f"run-log: flow list, status and runs, {RUNS:,} runs recorded in {' or '.join(STORES)}",
        highlight=False,
    )
    console.print(f"web: requests to flow web, {RUNS:,} runs in {' or '.join(STORES)}", highlight=False)


def _positive(text: str) -> int:
    number = int(text.replace("_", "").replace(",", ""))
    if number < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return number


if __name__ == "__main__":
    sys.exit(main())
