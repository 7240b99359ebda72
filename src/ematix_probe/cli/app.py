"""The Typer application: the commands below ``ematix-probe`` and ``flow probe``."""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperGroup

from ematix_probe.cli.command_list import COMMANDS
from ematix_probe.cli.commands import doctor, explain, runs
from ematix_probe.cli.commands import list as list_command
from ematix_probe.cli.commands import run as run_command
from ematix_probe.cli.terminal import write
from ematix_probe.errors import UsageError
from ematix_probe.suggestions import did_you_mean


class ProbeGroup(TyperGroup):
    """Suggests a command for one that is unknown."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        known = self.list_commands(ctx)
        if args and args[0] not in known and not args[0].startswith("-"):
            raise UsageError(
                f"there is no command {args[0]!r}{did_you_mean(args[0], known)}",
                next_step=f"{ctx.command_path} --help  lists the commands",
            )
        return super().resolve_command(ctx, args)


def new_group(help: str) -> typer.Typer:
    made = typer.Typer(
        help=help,
        cls=ProbeGroup,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        add_completion=False,
        context_settings={"help_option_names": ["--help", "-h"], "max_content_width": 100},
    )
    made.callback(invoke_without_command=True, help=help)(_show_help)
    return made


def _show_help(ctx: typer.Context) -> None:
    """Show the help when a group is called without a command."""
    if ctx.invoked_subcommand is None:
        write(ctx.get_help(), sys.stdout)


app = new_group("Run data quality and load tests, and look at their history.")
app.command("run", help=run_command.HELP)(run_command.run)
app.command("list", help=COMMANDS["list"])(list_command.list_probes)
app.command("explain", help=explain.HELP)(explain.explain)
app.command("doctor", help=doctor.HELP)(doctor.doctor)
_runs = new_group(COMMANDS["runs"])
_runs.command("list", help=runs.LIST_HELP)(runs.list_runs)
_runs.command("show", help=runs.SHOW_HELP)(runs.show_run)
_runs.command("trend", help=runs.TREND_HELP)(runs.trend)
_runs.command("diff", help=runs.DIFF_HELP)(runs.diff)
_runs.command("prune", help=runs.PRUNE_HELP)(runs.prune)
app.add_typer(_runs, name="runs", help=COMMANDS["runs"])


@functools.cache
def _build_parser() -> Any:
    """The parser. Building it takes longer than parsing, and a process may call several commands."""
    return typer.main.get_command(app)


def call(arguments: Sequence[str]) -> int:
    """Parse the command line and run the command. A command returns its exit code, or None for success."""
    code = _build_parser().main(list(arguments), prog_name="ematix-probe", standalone_mode=False)
    if code == 130:  # how typer says Ctrl-C
        raise KeyboardInterrupt
    return code if isinstance(code, int) else 0
