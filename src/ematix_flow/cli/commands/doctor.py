"""``flow doctor``: checks what this machine has, and says how to fix what is missing."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated

import typer

from ematix_flow.cli.command_group import new_app
from ematix_flow.cli.options import EngineOption, OutputOption, RunLogOption
from ematix_flow.cli.output import OutputColumn, write_json, write_table
from ematix_flow.cli.project import read_run_log
from ematix_flow.cli.terminal import say

if TYPE_CHECKING:
    from ematix_flow.engine.doctor import DoctorFinding

app = new_app()

_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}


@app.command()
def doctor(
    start: Annotated[bool, typer.Option("--start", help="Also start Spark, and time it.")] = False,
    engine: EngineOption = None,
    run_log: RunLogOption = None,
    output: OutputOption = "text",
) -> int:
    """Check Python, Java, Spark and the folders that flow uses. Exit code 1 when something is missing."""
    from ematix_flow.engine.doctor import diagnose
    from ematix_flow.run.context_setup import engine_settings

    if start:
        say("starting Spark …")
    findings = [*diagnose(engine_settings(engine), start=start), _check_run_log(run_log)]
    if output == "json":
        write_json([dataclasses.asdict(finding) for finding in findings])
    else:
        columns = (
            OutputColumn("subject"),
            OutputColumn("state", style=_STYLES.get),
            OutputColumn("found", wraps=True),
            OutputColumn("next", wraps=True),
        )
        write_table(columns, [(f.subject, f.status, f.detail, f.next_step) for f in findings])
        if not start:
            say("\nflow doctor --start  also starts Spark")
    return 1 if any(finding.status == "fail" for finding in findings) else 0


def _check_run_log(url: str | None) -> DoctorFinding:
    from ematix_flow.engine.doctor import DoctorFinding
    from ematix_flow.errors import ConfigError

    try:
        with read_run_log(url, read_only=False) as log:
            return DoctorFinding("run log", "ok", log.location)
    except ConfigError as error:
        return DoctorFinding("run log", "warn", error.what, error.next_step)
