"""``flow secrets``: lists the project's ``${…}`` references, and tests whether each can be read."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ematix_flow.cli.command_group import new_app
from ematix_flow.cli.error_report import show_error as show_error
from ematix_flow.cli.options import ModuleOption, OutputOption
from ematix_flow.cli.output import OutputColumn, status_column, write_json, write_table
from ematix_flow.cli.project import configured_module, load_project
from ematix_flow.cli.terminal import say, write
from ematix_flow.errors import CannotConnect, FlowError

if TYPE_CHECKING:
    from ematix_flow.config.secret_references import SecretReference

app = new_app("List and test the ${…} references of connections and settings.")

_MIN_LENGTH_TO_SHOW_ENDS = 12  # two characters at each end of a shorter value would reveal too much
_COLUMNS = (
    OutputColumn("reference"),
    OutputColumn("used by", wraps=True),
    status_column("result"),
    OutputColumn("found", wraps=True),
)


@dataclass(frozen=True)
class _ReferenceTest:
    """The value or the error of one reference."""

    value: str | None
    error: FlowError | None

    @property
    def result(self) -> str:
        return "failed" if self.error else "ok"

    @property
    def description(self) -> str:
        return self.error.what if self.error else _mask_middle(self.value or "")


@app.command()
def test(
    reference: Annotated[str, typer.Argument(metavar="REFERENCE", hidden=True)],
    show: Annotated[bool, typer.Option("--show", help="Print the whole value, unmasked.")] = False,
    module: ModuleOption = None,
    output: OutputOption = "text",
) -> int:
    """Read one REFERENCE now, such as VARIABLE, vault:team/db#password, aws:name#field or gcp:name.

    Shows the ends of the value and its length. Exit code 1 when it cannot be read.
    """
    _load_module_if_configured(module)
    tested = _test_reference(reference)
    if output == "json":
        document = {
            "reference": reference,
            "result": tested.result,
            "chars": None if tested.value is None else len(tested.value),
            "error": tested.error.to_json() if tested.error else None,
        }
        if show and tested.value is not None:  # --show prints the value unmasked
            write(json.dumps({**document, "value": tested.value}, indent=2), sys.stdout)
        else:
            write_json({**document, "value": None if tested.value is None else _mask_middle(tested.value)})
    elif tested.error is not None:
        show_error(tested.error)
    else:
        write((tested.value or "") if show else tested.description, sys.stdout)
    return 1 if tested.error else 0


@app.command("list")
def list_secrets(module: ModuleOption = None, output: OutputOption = "text") -> int:
    """Show every reference of the connections and of .ematix-flow.toml, and whether it can be read now.

    Exit code 1 when one cannot.
    """
    from ematix_flow.config import connection_definitions, list_secret_uses

    _load_module_if_configured(module)
    for listed in connection_definitions():
        if listed.problem:
            say(f"warning: connection {listed.name} is left out: {listed.problem}", "yellow")
    tested = _test_references(list_secret_uses())
    if output == "json":
        write_json([_as_json(use, outcome) for use, outcome in tested])
    elif tested:
        rows = [
            (use.reference_without_default, ", ".join(use.used_by), each.result, each.description)
            for use, each in tested
        ]
        write_table(_COLUMNS, rows)
        failed = next((use.reference_without_default for use, each in tested if each.error), None)
        if failed is not None:
            say(f"\nnext:  flow secrets test '{failed}'  shows how to fix it")
    else:
        say("no connection and no setting contains a ${…} reference")
    return 1 if any(outcome.error for _, outcome in tested) else 0


def _test_references(uses: tuple[SecretReference, ...]) -> list[tuple[SecretReference, _ReferenceTest]]:
    """Test all references. A store that does not answer is tried once, not once per secret."""
    silent: dict[str, FlowError] = {}
    tested = []
    for use in uses:
        store = use.reference.partition(":")[0]
        outcome = _ReferenceTest(None, silent[store]) if store in silent else _test_reference(use.reference)
        if isinstance(outcome.error, CannotConnect):
            silent[store] = outcome.error
        tested.append((use, outcome))
    return tested


def _test_reference(reference: str) -> _ReferenceTest:
    """Test a reference without braces, or a text that contains references in braces."""
    from ematix_flow.config.interpolate import expand

    try:
        return _ReferenceTest(str(expand(reference if "${" in reference else f"${{{reference}}}")), None)
    except FlowError as error:
        return _ReferenceTest(None, error)


def _mask_middle(value: str) -> str:
    count = f"({len(value)} char{'' if len(value) == 1 else 's'})"
    return f"{value[:2]}…{value[-2:]} {count}" if len(value) >= _MIN_LENGTH_TO_SHOW_ENDS else f"… {count}"


def _as_json(use: SecretReference, outcome: _ReferenceTest) -> dict[str, Any]:
    return {
        "reference": use.reference_without_default,
        "used_by": list(use.used_by),
        "result": outcome.result,
        "chars": None if outcome.value is None else len(outcome.value),
        "error": outcome.error.to_json() if outcome.error else None,
    }


def _load_module_if_configured(module: str | None) -> None:
    """Import the configured module, if there is one: it may register connections and resolvers."""
    if configured_module(module) is not None:
        load_project(module)
