"""A command group that imports a command only when it is called."""

from __future__ import annotations

import functools
import importlib
import sys
from typing import Any

import typer
from typer.core import TyperGroup

from ematix_flow.cli.command_list import command_names, help_text
from ematix_flow.cli.terminal import write

# typer's copy of click is private, so its objects are typed Any
Context = Any
Command = Any


def new_app(help: str | None = None) -> typer.Typer:
    """A Typer application for one command, or for a group of commands when ``help`` is given."""
    made = typer.Typer(help=help, rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False)
    if help is not None:
        made.callback(invoke_without_command=True, help=help)(_show_help)
    return made


def _show_help(ctx: typer.Context) -> None:
    """Show the help when a group is called without a command."""
    if ctx.invoked_subcommand is None:
        write(ctx.get_help(), sys.stdout)


class LazyGroup(TyperGroup):
    """The commands of `main.COMMANDS`; each module has an ``app``."""

    def list_commands(self, ctx: Context) -> list[str]:
        return command_names()

    def get_command(self, ctx: Context, cmd_name: str) -> Command | None:
        if cmd_name not in command_names():
            return None
        return _build_command(cmd_name)

    def resolve_command(self, ctx: Context, args: list[str]) -> Any:
        from ematix_flow.errors import UsageError, did_you_mean

        if args and args[0] not in command_names() and not args[0].startswith("-"):
            raise UsageError(
                f"there is no command {args[0]!r}.{did_you_mean(args[0], command_names())}",
                next_step="flow --help  lists the commands",
            )
        return super().resolve_command(ctx, args)

    def format_help(self, ctx: Context, formatter: Any) -> None:
        formatter.write(help_text() + "\n")


@functools.cache
def _build_command(name: str) -> Command:
    """Import a command's module and build its parser, once in this process."""
    module = importlib.import_module(f"ematix_flow.cli.commands.{name.replace('-', '_')}")
    command = typer.main.get_command(module.app)
    command.name = name
    return command
