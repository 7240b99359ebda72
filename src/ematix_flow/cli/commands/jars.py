"""``flow jars``: lists and fetches the Java libraries that Spark needs for some kinds of connections."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ematix_flow.cli.command_group import new_app
from ematix_flow.cli.options import OutputOption
from ematix_flow.cli.output import OutputColumn, format_size, status_column, write_json, write_table
from ematix_flow.cli.terminal import say

if TYPE_CHECKING:
    from ematix_flow.engine.jvm.jars import JarArtifact, JarStatus

app = new_app("List or fetch the Java libraries that a backend needs.")

GroupsArgument = Annotated[list[str] | None, typer.Argument(metavar="GROUP", hidden=True)]


@app.command("list")
def list_jars(
    groups: GroupsArgument = None,
    verify: Annotated[bool, typer.Option("--verify", help="Check every byte against the lock.")] = False,
    output: OutputOption = "text",
) -> None:
    """Show the jars of all GROUPs or of the named ones, and which are on this machine."""
    from ematix_flow.engine.jvm.jars import jar_lock, jar_status

    found = jar_status(groups or None, verify=verify)
    if output == "json":
        write_json([_as_json(jar) for jar in found])
        return
    columns = (
        OutputColumn("group"),
        OutputColumn("jar", wraps=True),
        OutputColumn("size", right=True),
        status_column("here"),
    )
    rows = [
        (jar.artifact.backend, jar.artifact, format_size(jar.artifact.size), "ok" if jar.present else "no")
        for jar in found
    ]
    write_table(columns, rows)
    say("")
    for group, about in jar_lock().about.items():
        if groups is None or group in groups:
            say(f"{group}: {about}")
    if not all(jar.present for jar in found):
        say("next:  flow jars fetch GROUP  downloads the missing jars, for a machine without network")


@app.command()
def fetch(groups: GroupsArgument = None, output: OutputOption = "text") -> None:
    """Download the jars of the named GROUPs, or all. Jars that are present are not downloaded again."""
    from ematix_flow.engine.jvm.jars import fetch_jars

    def report(artifact: JarArtifact, done: int, total: int) -> None:
        say(f"{done} of {total}: {artifact} ({format_size(artifact.size)})")

    found = fetch_jars(groups or None, report)
    if output == "json":
        write_json([_as_json(jar) for jar in found])
    else:
        folder = found[0].path.parent if found else ""
        write_table((OutputColumn("jars"), OutputColumn("folder")), [(len(found), folder)])


def _as_json(jar: JarStatus) -> dict[str, Any]:
    return {
        "group": jar.artifact.backend,
        "jar": str(jar.artifact),
        "bytes": jar.artifact.size,
        "sha256": jar.artifact.sha256,
        "present": jar.present,
        "path": str(jar.path),
    }
