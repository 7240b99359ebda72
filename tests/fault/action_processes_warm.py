"""What the processes of `action_processes` import before they are forked."""

from __future__ import annotations

import importlib

for _name in (
    "duckdb",
    "ematix_flow.backends.sqlite.source",
    "ematix_flow.backends.sqlite.target",
    "ematix_flow.backends.sqlite.staging",
    "ematix_flow.api.pipeline_handle",
    "ematix_flow.cli.app",
    "ematix_flow.cli.commands.run",
    "ematix_flow.cli.commands.run_action",
    "ematix_flow.cli.commands.scheduler",
    "ematix_flow.cli.signals",
    "ematix_flow.engine.execution.executor",
    "ematix_flow.observe.settings",
    "ematix_flow.run.context_setup",
    "ematix_flow.run.driver_checks",
    "ematix_flow.schedule.actions.action_runs",
    "ematix_flow.schedule.actions.carrier",
    "ematix_flow.schedule.scheduler",
    "ematix_flow.state.actions.sql",
    "ematix_probe.compiling.dialects.sqlite",
    "pydantic.types",
    "rich.progress",
    "sqlalchemy.dialects.sqlite.dml",
    "sqlglot",
    "typer.main",
):
    importlib.import_module(_name)
