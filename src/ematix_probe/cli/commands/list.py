"""``ematix-probe list``: shows the probes that files, folders or modules declare."""

from __future__ import annotations

from typing import Annotated

import typer

from ematix_probe.cli.output import Column, OutputOption, write_json, write_table
from ematix_probe.loading import FoundProbe, load_probes, short


def list_probes(
    paths: Annotated[list[str], typer.Argument(metavar="PATH…", help="Files, folders or modules.")],
    output: OutputOption = "text",
) -> None:
    found = load_probes(paths)
    if output == "json":
        write_json([_as_json(each) for each in found])
        return
    columns = (
        Column("probe"),
        Column("kind"),
        Column("of", wraps=True),
        Column("source", wraps=True),
        Column("assertions", right=True),
        Column("declared at", wraps=True),
    )
    write_table(
        columns,
        [
            (
                each.name,
                each.kind,
                each.subject,
                each.source,
                len(each.probe.assertion_names()),
                short(each.where),
            )
            for each in found
        ],
    )


def _as_json(found: FoundProbe) -> dict[str, object]:
    return {
        "name": found.name,
        "kind": found.kind,
        "of": found.subject,
        "source": found.source,
        "assertions": list(found.probe.assertion_names()),
        "where": found.where,
        "file": found.file,
    }
