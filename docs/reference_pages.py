"""The two pages of the site that are generated from the code: the commands and the Python API.

mkdocs calls `on_files` (see ``hooks`` in mkdocs.yml). The rest of this file needs no mkdocs, because a unit
test reads the pages too.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

SHARED_BY = 4  # an option that so many commands have, with the same words, is described once

CLI_PAGE = "reference/cli.md"
API_PAGE = "reference/api.md"
WINDOWS = ("Window", "Aggregation", "Join", "Watermark", "StateStore")


def on_files(files: Any, config: Any) -> Any:
    """Add the generated pages to the site."""
    from mkdocs.structure.files import File

    for path, text in generated_pages().items():
        files.append(File.generated(config, path, content=text))
    return files


def generated_pages() -> dict[str, str]:
    """The Markdown text of each generated page, by its path below ``docs``."""
    return {CLI_PAGE: "\n".join(cli_page()) + "\n", API_PAGE: "\n".join(api_page()) + "\n"}


# ---------------------------------------------------------------------------------------------- commands


def help_sections() -> dict[str, dict[str, str]]:
    """What ``flow --help`` prints: the commands of each section, then ``Options`` and ``Exit codes``."""
    from ematix_flow.cli.command_list import help_text

    sections: dict[str, dict[str, str]] = {}
    for line in help_text().splitlines():
        if line.startswith("  "):
            name, text = re.split(r"\s{2,}", line.strip(), maxsplit=1)
            sections[list(sections)[-1]][name] = text
        elif line.endswith(":"):
            sections[line[:-1]] = {}
        elif line.startswith("Exit codes: "):
            sections["Exit codes"] = {line: ""}
    return sections


def commands() -> Iterator[tuple[str, Any, Any]]:
    """Every command that ``flow --help`` shows and every command below it: its words, itself, its context."""
    import typer

    from ematix_flow.cli.app import app

    root = typer.main.get_command(app)
    context = root.make_context("flow", [], resilient_parsing=True)
    sections = help_sections()
    del sections["Options"], sections["Exit codes"]
    for name in (name for entries in sections.values() for name in entries):
        yield from _family(f"flow {name}", root.get_command(context, name), context)


def _family(words: str, command: Any, parent: Any) -> Iterator[tuple[str, Any, Any]]:
    context = command.make_context(words, [], parent=parent, resilient_parsing=True)
    context.info_name = words
    yield words, command, context
    for name in command.list_commands(context) if hasattr(command, "list_commands") else ():
        yield from _family(f"{words} {name}", command.get_command(context, name), context)


def option_rows(command: Any, context: Any) -> list[tuple[str, str]]:
    """The options of a command as ``--help`` shows them: names, and what they do."""
    records = (option.get_help_record(context) for option in command.get_params(context))
    return [record for record in records if record is not None and "--help" not in record[0]]


def cli_page() -> Iterator[str]:
    sections = help_sections()
    options, exit_codes = sections.pop("Options"), sections.pop("Exit codes")
    found = [
        (words, command, option_rows(command, context), context) for words, command, context in commands()
    ]
    counts = Counter(row for _, _, rows, _ in found for row in rows)
    shared = [row for row, count in counts.items() if count >= SHARED_BY]
    yield "# Commands"
    yield ""
    yield "This page is generated from the commands themselves; `flow COMMAND --help` prints the same text."
    yield "[Run pipelines](../how-to/running.md) shows them at work."
    for section, entries in sections.items():
        yield from ("", f"**{section}**", "", "| command | |", "|---|---|")
        yield from (f"| [`flow {name}`](#flow-{name}) | {_cell(text)} |" for name, text in entries.items())
    yield from ("", "## Options of every command", "", "| option | |", "|---|---|")
    yield from (f"| `{name}` | {_cell(text)} |" for name, text in options.items())
    yield from ("", *exit_codes, "", "## Options that many commands share", "")
    yield "A command that takes one of these names it under *Also*."
    yield from ("", *_option_table(shared))
    for words, command, rows, context in found:
        level = "##" if words.count(" ") == 1 else "###"
        yield from ("", f"{level} {words}", "", "```text", _usage(words, command, context), "```", "")
        yield inspect.cleandoc(command.help or "").replace("\b", "")
        own = [row for row in rows if row not in shared]
        if own:
            yield from ("", *_option_table(own))
        also = [f"`{_long_name(row[0])}`" for row in rows if row in shared]
        if also:
            yield from ("", f"*Also*: {', '.join(also)}.")


def _usage(words: str, command: Any, context: Any) -> str:
    return " ".join([words, *command.collect_usage_pieces(context)])


def _option_table(rows: list[tuple[str, str]]) -> list[str]:
    return ["| option | |", "|---|---|", *(f"| `{names}` | {_cell(text)} |" for names, text in rows)]


def _long_name(names: str) -> str:
    (name,) = re.findall(r"--[\w-]+", names)[:1]
    return name


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", "\\|").replace("<", "&lt;").replace("${", "$&#123;")


# ------------------------------------------------------------------------------------------- Python API

# What is described on a page written by hand, option by option; a test holds these pages against the code.
OPTIONS_ON = {
    "ematix.pipeline": "[its options](pipelines.md#options)",
    "ematix.streaming_pipeline": "[its options](streams.md#options)",
    "run_streaming_pipeline": "[its options](streams.md#options)",
    "ematix.target": "[the options of pipelines](pipelines.md#options)",
    "Target": "the options of [pipelines](pipelines.md#options), [streams](streams.md#options) and "
    "[files](../how-to/files.md)",
    "CDC": "[its options](../how-to/change-data-capture.md#options)",
}


def api_page() -> Iterator[str]:
    import ematix_flow as flow
    from ematix_flow import alerters, config, connections, ematix, errors, normalize, secrets, streaming

    yield "# Python API"
    yield ""
    yield "This page is generated from the code. Import the names from `ematix_flow`, unless a section names"
    yield "another module."
    yield from ("", "## Declare", "")
    for name in ("connection", "table", "pipeline", "streaming_pipeline", "target", "workflow", "transform"):
        yield from _callable(f"ematix.{name}", getattr(ematix, name))
    yield "`ematix.job` is another name for `ematix.pipeline`. `ematix.transform_ref(name)` refers to a named"
    yield "transform."
    yield ""
    for name in (*("Target", "Source", "Lookup", "CDC", "AllOf", "AnyOf", "udf", "udaf"), *WINDOWS):
        yield from _callable(name, getattr(flow, name))
    yield from (
        "",
        "### Expectations",
        "",
        "[Check rows before they are loaded](../how-to/expectations.md)",
        "",
    )
    for name in ("expect", "expect_or_drop", "expect_or_fail"):
        yield from _callable(name, getattr(flow, name))
    for name in ("expect_all", "expect_all_or_drop", "expect_all_or_fail"):
        yield from _callable(name, getattr(flow, name))
    yield from ("", "## Run", "")
    for name in ("Pipeline", "StreamingPipeline", "PythonScalarUdfHandle", "PythonAggregateUdfHandle"):
        yield from _class(name, getattr(flow, name))
    for name in ("run_streaming_pipeline", "run_pipeline", "apply_udf_to_batch", "apply_udaf_to_batch"):
        yield from _callable(name, getattr(flow, name))
    yield from ("", "## Tables", "", "[Tables](tables.md) describes types, markers and normalisers.", "")
    yield from _class("ManagedTable", flow.ManagedTable)
    yield from _callable("Column", flow.Column)
    for name in ("pk", "natural_key", "nullable"):
        yield from _callable(name, getattr(flow, name))
    yield from ("", "### Types", "", "| type | |", "|---|---|")
    for name, value in sorted((name, getattr(flow, name)) for name in flow.__all__):
        if type(value).__name__ == "ColumnTypeMeta":
            yield f"| `{name}` | {_cell(_prose(_first_line(value)))} |"
    yield from _module(normalize, "normalisers and pre-transforms", "Normalisers and pre-transforms")
    yield from ("", "## Connections", "", "[Connections](connections.md) lists the fields of every kind.", "")
    yield from ("| class | |", "|---|---|")
    for name in sorted(name for name in flow.__all__ if name.endswith("Connection")):
        yield f"| `{name}` | {_cell(_prose(_first_line(getattr(connections, name))))} |"
    yield ""
    for name in (
        "register_connection",
        "registered_connections",
        "get_connection",
        "connect",
        "check_connection",
    ):
        yield from _callable(name, getattr(flow, name))
    yield from _module(config, "settings")
    yield from _module(secrets, "secret stores")
    yield from _module(alerters, "alerters")
    yield from _module(streaming, "streams", skip={"Target", "Source", "Lookup", *flow.__all__})
    yield from ("", "## ematix_flow.errors", "", _prose(inspect.getdoc(errors) or ""))


def _module(
    module: Any, subject: str, title: str | None = None, skip: set[str] | None = None
) -> Iterator[str]:
    yield from ("", f"## {title or module.__name__}", "", f"From `{module.__name__}`: {subject}.", "")
    names = [name for name in module.__all__ if not name.isupper() and name not in (skip or ())]
    yield from ("| name | |", "|---|---|")
    for name in names:
        value = getattr(module, name)
        shown = f"{name}{_signature(value)}" if inspect.isfunction(value) else name
        yield f"| `{_one_line(shown)}` | {_cell(_prose(_first_line(value)))} |"


def _callable(name: str, value: Callable[..., Any]) -> Iterator[str]:
    yield from (f"### {name}", "")
    if name in OPTIONS_ON:
        yield from (f"Takes {OPTIONS_ON[name]}.", "")
    else:
        yield from ("```text", f"{name}{_signature(value)}", "```", "")
    yield from (_prose(inspect.getdoc(value) or ""), "")


def _class(name: str, value: type) -> Iterator[str]:
    yield from (f"### {name}", "", _prose(inspect.getdoc(value) or ""), "")
    for method, function in vars(value).items():
        if method.startswith("_") or isinstance(function, property):
            continue
        plain = getattr(function, "__func__", function)
        if inspect.isfunction(plain):
            yield from ("```text", f".{method}{_signature(plain, ('self', 'cls'))}", "```", "")
            yield from (_prose(inspect.getdoc(plain) or ""), "")


def _signature(value: Any, hidden: tuple[str, ...] = ("where",)) -> str:
    """The signature, one parameter a line when it is long."""
    signature = inspect.signature(value)
    parameters = [p for p in signature.parameters.values() if p.name not in hidden]
    if dataclasses.is_dataclass(value):
        signature = signature.replace(return_annotation=inspect.Signature.empty)
    text = _unquote_annotations(str(signature.replace(parameters=parameters)))
    text = re.sub(r"\b(?:[a-z_]\w*\.)+(?=[A-Z])", "", text)
    if len(text) < 90 or not parameters:
        return text
    shown = str(signature.replace(parameters=[], return_annotation=signature.return_annotation))
    result = _unquote_annotations(shown).partition("->")[2]
    parts = [_unquote_annotations(str(p)) for p in parameters]
    kinds = [p.kind for p in parameters]
    if inspect.Parameter.KEYWORD_ONLY in kinds:
        parts.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "*")
    lines = [f"    {re.sub(r'(?:[a-z_]+[.])+(?=[A-Z])', '', part)}," for part in parts]
    return "\n".join(["(", *lines, ")"]) + (f" ->{result}" if result else "")


def _unquote_annotations(signature: str) -> str:
    """Remove the quotes around annotations; text defaults keep theirs."""
    return re.sub(r"(: |-> )'([^']*)'", r"\1\2", signature)


def _first_line(value: Any) -> str:
    return (inspect.getdoc(value) or "").partition("\n\n")[0]


def _prose(text: str) -> str:
    """A docstring as Markdown: double backticks are code, and what follows ``::`` is a block."""
    head, literal, rest = re.sub(r"``(.+?)``", r"`\1`", text, flags=re.S).partition("::\n")
    if not literal:
        return head
    body, *after = re.split(r"\n(?=\S)", rest, maxsplit=1)
    block = textwrap.dedent(body.strip("\n"))
    end = "" if head.endswith("\n") else ":"
    return f"{head}{end}\n\n```text\n{block}\n```\n\n{_prose(after[0]) if after else ''}"


def _one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text)


if __name__ == "__main__":
    sys.stdout.write("\n".join(generated_pages().values()))
