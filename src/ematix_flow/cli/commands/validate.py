"""``flow validate``: checks pipelines against their source and target."""

from __future__ import annotations

from ematix_flow.cli.command_group import new_app
from ematix_flow.cli.error_report import show_error
from ematix_flow.cli.options import (
    AllOption,
    EngineOption,
    ExcludeOption,
    ModuleOption,
    NamesArgument,
    OutputOption,
    SelectOption,
)
from ematix_flow.cli.output import OutputColumn, status_column, write_json, write_table
from ematix_flow.cli.project import load_project, resolve_pipelines

app = new_app()


@app.command()
def validate(
    names: NamesArgument = None,
    everything: AllOption = False,
    select: SelectOption = None,
    exclude: ExcludeOption = None,
    module: ModuleOption = None,
    engine: EngineOption = None,
    output: OutputOption = "text",
) -> int:
    """Check pipelines, by default all, against source and target: SQL, columns, types. Changes nothing."""
    from ematix_flow.run.context_setup import spark_starter
    from ematix_flow.run.preview import validate as check

    registry = load_project(module)
    chosen = resolve_pipelines(
        registry, names, everything=everything, select=select, exclude=exclude, by_default=True
    )
    spark = spark_starter(engine)
    found = [check(registry.pipeline(name), spark) for name in chosen]
    errors = [validation.error for validation in found if validation.error is not None]
    if output == "json":
        write_json([validation.to_json() for validation in found])
    else:
        columns = (OutputColumn("pipeline"), status_column("result"), OutputColumn("warnings", wraps=True))
        write_table(columns, [(v.pipeline, "ok" if v.ok else "failed", "; ".join(v.warnings)) for v in found])
        for validation in found:
            if validation.error is not None:
                show_error(validation.error, validation.pipeline if len(found) > 1 else None)
    if len(found) == 1 and errors:
        return errors[0].exit_code
    return 1 if errors else 0
