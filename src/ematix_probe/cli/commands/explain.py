"""``ematix-probe explain``: shows what a probe checks, and the one statement that its assertions become."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ematix_probe.cli.output import Column, OutputOption, write_json, write_table
from ematix_probe.cli.terminal import say, write
from ematix_probe.control_characters import mask_and_escape
from ematix_probe.errors import ProbeError, UsageError
from ematix_probe.loading import FoundProbe, load_probes, select_probes, short
from ematix_probe.redaction import mask

if TYPE_CHECKING:
    from ematix_probe.assertions import Assertion
    from ematix_probe.declaration import DataPlan

HELP = """Show what a probe checks, and the statement that it becomes. Runs nothing.

The statement depends on the types of the columns. Those of a file are read; those of a server need
--connect.
"""
_SERVERS = ("postgres", "mysql", "spark", "iceberg")  # looking at them, or into a bucket, means to connect


def explain(
    path: Annotated[str, typer.Argument(metavar="PATH", help="A file, a folder or a module.")],
    probe: Annotated[
        str | None, typer.Argument(metavar="PROBE", help="The probe's name; not needed for a single one.")
    ] = None,
    connect: Annotated[
        bool, typer.Option("--connect", help="Ask a server for the types of the columns.")
    ] = False,
    output: OutputOption = "text",
) -> None:
    found = _chosen(load_probes([path]), probe)
    plan = found.probe.plan()
    assertions = getattr(plan, "assertions", ())
    statement, dialect, note = _statement(plan, connect) if found.kind == "data" else (None, None, None)
    if output == "json":
        write_json(
            {
                "name": found.name,
                "kind": found.kind,
                "description": getattr(plan, "description", None),
                "where": found.where,
                "source": found.source,
                "of": found.subject,
                "assertions": [_assertion_json(each) for each in assertions],
                "statement": statement,
                "dialect": dialect,
                "note": note,
            }
        )
        return
    facts = {
        "probe": found.name,
        "about": " ".join(mask(getattr(plan, "description", None) or "").split()),
        "declared at": short(found.where),
        "source": found.source,
        "of": found.subject,
        **_load_facts(found, plan),
    }
    write("\n".join(f"{name:<13}{mask_and_escape(str(text))}" for name, text in facts.items() if text))
    write("")
    columns = (
        Column("assertion", wraps=True),
        Column("kind"),
        Column("holds when", wraps=True),
        Column("options", wraps=True),
    )
    write_table(columns, [(each.label, each.kind, _rule(each), _options(each)) for each in assertions])
    if statement is not None:
        shown = mask_and_escape(statement, keep="\n")
        write(f"\n{shown}")
    if note:
        say(f"\n{note}")


def _chosen(found: Sequence[FoundProbe], name: str | None) -> FoundProbe:
    if name is None:
        if len(found) == 1:
            return found[0]
        raise UsageError(
            f"there are {len(found)} probes",
            next_step=f"name one of: {', '.join(each.name for each in found[:12])}",
        )
    return select_probes(found, [name])[0]


def _statement(plan: DataPlan, connect: bool) -> tuple[str | None, str | None, str | None]:
    """The statement and its dialect, else why there is none."""
    if (plan.source.kind in _SERVERS or plan.source.kind.startswith("s3_")) and not connect:
        return (
            None,
            None,
            f"{_all_assertions(len(plan.assertions))} one statement of the source. --connect shows it: "
            "it depends on the types of the columns.",
        )
    from ematix_probe.compiling import compile_assertions
    from ematix_probe.failing_values import are_samples_wanted
    from ematix_probe.sources.sql_subject import add_schema_hint

    try:
        with plan.source.open(plan.subject) as opened:
            columns = {column.name: column for column in opened.columns()}
            compiled = compile_assertions(
                plan.assertions,
                columns,
                opened.dialect,
                opened.rows(),
                opened.reference,
                with_keys=are_samples_wanted(),
            )
            text = compiled.query.sql(dialect=opened.dialect, pretty=True)
            return text, opened.dialect, None
    except ProbeError as error:
        add_schema_hint(error, plan.subject)
        if connect:
            raise
        return None, None, f"There is no statement to show: {error}"


def _load_facts(found: FoundProbe, plan: Any) -> dict[str, str]:
    """What a load probe will do, in the words of its plan."""
    if found.kind == "data":
        return {}
    described = getattr(plan, "describe", None)
    return dict(described()) if callable(described) else {}


def _assertion_json(assertion: Any) -> dict[str, Any]:
    return {"name": assertion.label, **assertion.to_json()}


def _rule(assertion: Assertion) -> str:
    """The arguments of an assertion: ``low=0, high=100``."""
    fields = assertion.to_json()
    left_out = ("kind", "options", "column", "columns" if assertion.kind != "schema_match" else "")
    return ", ".join(
        f"{name}={_value(value)}"
        for name, value in fields.items()
        if name not in left_out and value is not None and value is not False
    )


def _value(value: Any) -> str:
    if isinstance(value, dict) and len(value) == 1:
        return str(next(iter(value.values())))
    if isinstance(value, list):
        shown = ", ".join(_value(each) for each in value[:6])
        return f"[{shown}{', …' if len(value) > 6 else ''}]"
    return repr(mask(value)) if isinstance(value, str) else str(value)


def _options(assertion: Assertion) -> str:
    options = assertion.options
    parts = [
        "warns" if options.severity == "warn" else "",
        f"where {options.where}" if options.where else "",
        f"tolerates {options.tolerate:.4g} of the rows" if options.tolerate else "",
    ]
    return ", ".join(part for part in parts if part)


def _all_assertions(number: int) -> str:
    return "The assertion becomes" if number == 1 else f"All {number} assertions become"
