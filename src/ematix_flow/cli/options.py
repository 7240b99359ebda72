"""The options that many commands share, each declared once."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Annotated, Literal

import typer

from ematix_flow.cli.project import complete_pipelines

# other names of an option, accepted but not shown
ALIASES = {
    "--format": "--output",
    "--run-log-url": "--run-log",
    "--run-log-path": "--run-log",
    "--bind": "--host",
}

Output = Literal["text", "json"]

OutputOption = Annotated[
    Output,
    typer.Option("--output", "-o", help="Print text, or JSON for a program.", show_default=False),
]
ModuleOption = Annotated[
    str | None,
    typer.Option(
        "--module",
        "-m",
        metavar="NAME",
        help="The module with the pipelines: dotted, or a .py file. Without it: EMATIX_FLOW_MODULE, "
        "then [project] module in .ematix-flow.toml.",
    ),
]
RunLogOption = Annotated[
    str | None,
    typer.Option(
        "--run-log",
        metavar="URL",
        help="Where runs are recorded, such as sqlite://run_log.db. Without it: EMATIX_FLOW_RUN_LOG_URL, "
        "then [run_log] url in .ematix-flow.toml, then the state folder.",
    ),
]
EngineOption = Annotated[
    str | None,
    typer.Option(
        "--engine",
        metavar="MODE",
        help="Where Spark runs: auto, local, local[N], spark://…, k8s://…, yarn or sc://…",
    ),
]
AlerterOption = Annotated[
    list[str] | None,
    typer.Option(
        "--alerter",
        metavar="URL",
        help="Where to send alerts; may be given several times. Without it: EMATIX_FLOW_ALERTERS, "
        "then [alerts] urls in .ematix-flow.toml.",
    ),
]
MetricsOption = Annotated[
    str | None,
    typer.Option(
        "--metrics",
        metavar="URL",
        help="Where to send metrics of runs. Without it: EMATIX_FLOW_METRICS, then [metrics] url.",
    ),
]
TracesOption = Annotated[
    str | None,
    typer.Option(
        "--traces",
        metavar="URL",
        help="Where to send traces of runs. Without it: EMATIX_FLOW_TRACES, then [traces] url.",
    ),
]
SelectOption = Annotated[
    list[str] | None,
    typer.Option(
        "--select",
        "-s",
        metavar="SELECTOR",
        help="Select pipelines: a name or orders_*, tag:, workflow:, source:, target:; +name+ adds upstreams "
        "and downstreams; a space unites, a comma intersects. May be repeated.",
    ),
]
ExcludeOption = Annotated[
    list[str] | None, typer.Option("--exclude", metavar="SELECTOR", help="Leave these pipelines out.")
]
WorkersOption = Annotated[
    int,
    typer.Option("--workers", metavar="N", min=1, help="How many pipelines run in parallel."),
]
AllOption = Annotated[bool, typer.Option("--all", help="Every pipeline of the module.")]
NamesArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="NAME", hidden=True, autocompletion=complete_pipelines),
]
NameArgument = Annotated[str, typer.Argument(metavar="NAME", hidden=True, autocompletion=complete_pipelines)]


def replace_aliases(arguments: Sequence[str]) -> list[str]:
    """The arguments with each alias replaced by the option's name; what follows ``--`` stays."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    out = []
    for argument in arguments[:end]:
        name, equals, value = argument.partition("=")
        out.append(f"{ALIASES.get(name, name)}{equals}{value}")
    return [*out, *arguments[end:]]


def wants_json(arguments: Sequence[str]) -> bool:
    """Whether the output is JSON, read from the raw arguments because they may fail to parse."""
    given = replace_aliases(arguments)
    together = {"--output=json", "-ojson", "-o=json"} & set(given)
    return bool(together) or any(
        name in ("--output", "-o") and value == "json" for name, value in itertools.pairwise(given)
    )
