"""``flow connections``: lists connections with their origin, checks them and defines them."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from ematix_flow.cli.command_group import new_app
from ematix_flow.cli.error_report import show_error
from ematix_flow.cli.options import ModuleOption, OutputOption
from ematix_flow.cli.output import OutputColumn, status_column, write_json, write_table, write_text
from ematix_flow.cli.project import configured_module, load_project
from ematix_flow.cli.terminal import say
from ematix_flow.errors import UsageError

app = new_app("List, check and define connections.")

CANNOT_CONNECT = 5


@app.command("list")
def list_connections(module: ModuleOption = None, output: OutputOption = "text") -> None:
    """Show every connection: its definition, and definitions that it hides. Secrets are masked."""
    from ematix_flow.config import connection_definitions

    _load_module_if_configured(module)
    found = connection_definitions()
    if output == "json":
        write_json([listed.to_json() for listed in found])
        return
    if not found:
        say("no connection is known here")
        say("next:  flow connections set NAME url=postgres://user:${VARIABLE}@host/database")
        return
    rows = []
    for listed in found:
        hides = ", ".join(str(origin) for origin in listed.shadowed)
        rows.append(
            (listed.name, listed.kind or "?", listed.problem or listed.destination, listed.origin, hides)
        )
    columns = (
        OutputColumn("name"),
        OutputColumn("kind"),
        OutputColumn("leads to", wraps=True),
        OutputColumn("defined in", wraps=True),
        OutputColumn("hides", wraps=True),
    )
    write_table(columns, rows)


@app.command()
def check(
    names: Annotated[list[str] | None, typer.Argument(metavar="NAME", hidden=True)] = None,
    everything: Annotated[bool, typer.Option("--all", help="Check every known connection.")] = False,
    module: ModuleOption = None,
    output: OutputOption = "text",
) -> int:
    """Open the connections and show what answers. Exit code 5 when one cannot be reached."""
    from ematix_flow.config import connection_definitions
    from ematix_flow.run.connect import time_connection

    _load_module_if_configured(module)
    if bool(names) == everything:
        known = ", ".join(listed.name for listed in connection_definitions()) or "none is known"
        raise UsageError("give the names of connections, or --all", next_step=f"connections: {known}")
    wanted = [listed.name for listed in connection_definitions()] if everything else names or []
    checks = [time_connection(name) for name in wanted]
    if output == "json":
        write_json([result.to_json() for result in checks])
    else:
        columns = (
            OutputColumn("name"),
            status_column("result"),
            OutputColumn("seconds", right=True),
            OutputColumn("found", wraps=True),
        )
        write_table(columns, [(each.name, each.result, each.seconds, each.found) for each in checks])
        for each in checks:
            if each.error is not None:
                show_error(each.error)
    errors = [each.error for each in checks if each.error is not None]
    if len(checks) == 1 and errors:
        return errors[0].exit_code
    return CANNOT_CONNECT if errors else 0


@app.command("set")
def set_connection(
    definition: Annotated[
        list[str] | None, typer.Argument(metavar="NAME FIELD=VALUE… | NAME=URL", hidden=True)
    ] = None,
    from_env: Annotated[
        str | None,
        typer.Option(
            "--from-env",
            metavar="VARIABLE",
            help="Read the URL from this variable at each use; the file then holds no secret.",
        ),
    ] = None,
    output: OutputOption = "text",
) -> None:
    """Define a connection in ~/.ematix-flow/connections.toml, for example

    flow connections set warehouse url='postgres://etl:${PASSWORD}@host/db'

    Your shell may keep the command in its history: write ${VARIABLE} instead of a secret.
    """
    from ematix_flow.config import connection_definitions
    from ematix_flow.config import set_connection as write
    from ematix_flow.config.connection_editing import parse_definition

    arguments = list(definition or ())
    if from_env is not None:
        if len(arguments) != 1 or "=" in arguments[0]:
            raise UsageError("--from-env takes the name alone", next_step=_from_env_command(from_env))
        if not from_env.isidentifier():
            raise UsageError(
                f"{from_env!r} is not the name of a variable", next_step=_from_env_command("WAREHOUSE_URL")
            )
        arguments.append(f"url=${{{from_env}}}")
        if from_env not in os.environ:
            say(f"warning: {from_env} is not set; set it before the connection is used", "yellow")
    name, fields = parse_definition(arguments)
    path = write(name, fields)
    if output == "json":
        write_json({"name": name, "file": str(path)})
        return
    write_text(f"connection {name} is defined in {path}")
    in_force = next((known.origin for known in connection_definitions() if known.name == name), None)
    if in_force is not None and str(path) not in str(in_force):
        say(f"warning: {in_force} takes precedence and hides it", "yellow")
    say(f"next:  flow connections check {name}")


def _from_env_command(variable: str) -> str:
    return f"flow connections set NAME --from-env {variable}"


def _load_module_if_configured(module: str | None) -> None:
    """Import the configured module, if there is one: it may register connections."""
    if configured_module(module) is not None:
        load_project(module)
