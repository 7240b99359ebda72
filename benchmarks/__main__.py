"""``python -m benchmarks``: measure, list, publish. Without a command everything is measured in full."""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Sequence

from rich.console import Console

from benchmarks.cases import CASES, CONTESTANTS, FLOW
from benchmarks.machine import busy
from benchmarks.orders import DATA, ROWS_PER_SCALE
from benchmarks.results import FOLDER, Result, save, standing
from benchmarks.tables import remarks, terminal_table

TRIALS = DATA / "trials"
LIMIT_SECONDS = 900.0
REPEAT = 3
WIDTH = 120  # of what is written to a file or a pipe


def parser() -> argparse.ArgumentParser:
    main = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    main.add_argument("--list", action="store_true", help="list cases and contestants")
    main.add_argument(
        "--publish", action="store_true", help="write the saved results into docs/benchmarks.md"
    )
    commands = main.add_subparsers(dest="command", metavar="COMMAND")
    copy = commands.add_parser("copy", help="copy a table between two systems, against rivals")
    copy.add_argument("--rows", type=_positive, default=ROWS_PER_SCALE, help="default: %(default)s")
    copy.add_argument("--case", action="append", choices=CASES, help="only this; may be given again")
    copy.add_argument(
        "--contestant", action="append", choices=CONTESTANTS, help="only this; may be given again"
    )
    cold = commands.add_parser("cold-start", help="time of a cold  flow run")
    for command in (copy, cold):
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

        console.print(f"published {publish()} results in docs/benchmarks.md")
        return 0
    if busy():
        console.print("[yellow]Others compute on this machine now: these figures will say little.[/]")
    if given.command is None:
        return max(
            _measure(console, parser().parse_args(["copy"])),
            _measure(console, parser().parse_args(["cold-start"])),
        )
    return _measure(console, given)


def _measure(console: Console, given: argparse.Namespace) -> int:
    from benchmarks.cold_start import run_cold_start
    from benchmarks.copy_loads import Settings, run_cases

    seed = random.randrange(2**32) if given.seed is None else given.seed

    def say(text: str) -> None:
        console.print(text, markup=False, highlight=False)

    if given.command == "cold-start":
        say("Cold start")
        return _report(console, [run_cold_start(given.repeat, given.limit, seed, say)], full=True)
    contestants = tuple(given.contestant) if given.contestant else None
    settings = Settings(given.rows, given.repeat, given.limit, seed, contestants)
    cases = [CASES[name] for name in given.case or CASES]
    full = given.rows >= ROWS_PER_SCALE and contestants is None
    return _report(console, run_cases(cases, settings, say), full=full)


def _report(console: Console, results: Sequence[Result], *, full: bool) -> int:
    """Print and keep them. Only full data is kept among what can be published; how often is said there."""
    failed = False
    for result in results:
        console.print()
        console.print(terminal_table(result))
        for remark in remarks(result):
            console.print(f"  {remark}", markup=False, highlight=False)
        file = save(result, FOLDER if full else TRIALS)
        console.print(f"  saved as {file.relative_to(DATA.parent.parent)}", markup=False, highlight=False)
        failed |= any(
            standing(result, name).problem is not None for name in result.contestants if name == FLOW
        )
    return 1 if failed else 0


def _list(console: Console) -> None:
    for case in CASES.values():
        console.print(f"copy --case {case.name}: {case.title}", highlight=False)
        for name in case.contestants:
            console.print(f"    {name:<13} {CONTESTANTS[name]}", highlight=False)
    console.print(
        "cold-start: flow run of 1,000 rows, with and without the class-data archive", highlight=False
    )


def _positive(text: str) -> int:
    number = int(text.replace("_", "").replace(",", ""))
    if number < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return number


if __name__ == "__main__":
    sys.exit(main())
