"""``flow consume``: runs streams until they are stopped."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ematix_flow.cli.command_group import new_app
from ematix_flow.cli.options import (
    AlerterOption,
    EngineOption,
    MetricsOption,
    ModuleOption,
    OutputOption,
    RunLogOption,
    TracesOption,
)
from ematix_flow.cli.output import write_json, write_text
from ematix_flow.cli.project import complete_streams, configured_module, load_project, resolve_streams
from ematix_flow.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ematix_flow.api.streaming import StreamingPipeline
    from ematix_flow.streams.running_stream import RunningStream

app = new_app()

DEFAULT_FILE = "pipeline.toml"


@app.command()
def consume(
    what: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="CONFIG.toml | NAME",
            help=f"A TOML file, {DEFAULT_FILE} by default; or streams of the module.",
            show_default=False,
            autocompletion=complete_streams,
        ),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every stream of the module.")] = False,
    module: ModuleOption = None,
    once: Annotated[
        bool, typer.Option("--once", "--available-now", help="Load what is there now, then end.")
    ] = False,
    plan: Annotated[bool, typer.Option("--plan", help="Show what would be done. Changes nothing.")] = False,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            "--metrics-port", metavar="PORT", min=0, max=65535, help="Serve Prometheus metrics on this port."
        ),
    ] = None,
    restart_on_error: Annotated[
        bool, typer.Option("--restart-on-error", help="Start again after a failure, with a growing pause.")
    ] = False,
    initial_backoff_ms: Annotated[
        int, typer.Option("--initial-backoff-ms", min=1, help="The first pause before a restart.")
    ] = 1_000,
    max_backoff_ms: Annotated[
        int, typer.Option("--max-backoff-ms", min=1, help="The longest pause before a restart.")
    ] = 60_000,
    max_restarts: Annotated[
        int | None,
        typer.Option("--max-restarts", min=0, help="How many restarts in a row; no limit by default."),
    ] = None,
    reset_backoff_after_secs: Annotated[
        float,
        typer.Option("--reset-backoff-after-secs", min=0, help="A run of this length resets the pause."),
    ] = 60,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only errors; no table.")] = False,
    alerter: AlerterOption = None,
    metrics: MetricsOption = None,
    traces: TracesOption = None,
    run_log: RunLogOption = None,
    engine: EngineOption = None,
    output: OutputOption = "text",
) -> int:
    """Run streams until Ctrl-C or SIGTERM, which stop them after the current batch."""
    from ematix_flow.backends.state_stores.run_logs import open_run_log
    from ematix_flow.cli.run_streams import report_streams, run_streams
    from ematix_flow.cli.stream_views import choose_stream_view
    from ematix_flow.observe.settings import Observability, open_observers
    from ematix_flow.observe.stream_metrics import StreamMetrics
    from ematix_flow.state.runlog.base import project_run_log

    watching = Observability.resolve(os.environ, alerter or (), metrics, traces)
    watching.check()
    pipelines = streams_from_arguments(what or [], module, everything=everything)
    if plan:
        plans = [pipeline.plan(engine=engine) for pipeline in pipelines]
        if output == "json":
            write_json([plan.to_json() for plan in plans])
        else:
            write_text("\n\n".join(map(str, plans)))
        return 0
    view = choose_stream_view([pipeline.name for pipeline in pipelines], quiet=quiet)
    measured = StreamMetrics()  # one for all of them: one process has one port

    def start(pipeline: StreamingPipeline) -> RunningStream:
        return pipeline.start(
            once=once,
            metrics=measured,
            observers=observers,
            restart_on_error=restart_on_error,
            initial_backoff_ms=initial_backoff_ms,
            max_backoff_ms=max_backoff_ms,
            max_restarts=max_restarts,
            reset_backoff_after_secs=reset_backoff_after_secs,
            run_log=run_log,
            engine=engine,
            watch=view,
            together_with=pipelines,
        )

    with contextlib.ExitStack() as served:
        log = served.enter_context(open_run_log(run_log or project_run_log(os.environ), env=os.environ))
        observers = served.enter_context(open_observers(watching, log, [measured.registry]))
        if metrics_port is not None:
            server = served.enter_context(measured.serve(metrics_port))
            view.note(f"metrics at {server.url}/metrics")
        outcomes = run_streams(pipelines, view, start)
    return report_streams(outcomes, as_json=output == "json", quiet=quiet)


def streams_from_arguments(
    given: Sequence[str], module: str | None, *, everything: bool
) -> list[StreamingPipeline]:
    """The streams of the given TOML files, or those of a module by name."""
    files = [text for text in given if text.endswith(".toml") or (module is None and Path(text).is_file())]
    names = [text for text in given if text not in files]
    if files and (module is not None or names or everything):
        also = "--module" if module is not None else "--all" if everything else f"the name {names[0]!r}"
        raise UsageError(
            f"{files[0]} declares a whole stream: {also} cannot be combined with it",
            next_step=f"flow consume {files[0]}   or   flow consume --module … NAME",
        )
    if not given and module is None and not everything:
        if Path(DEFAULT_FILE).is_file():
            files = [DEFAULT_FILE]
        elif configured_module(None) is None:
            raise UsageError(
                f"no stream is given, and there is no {DEFAULT_FILE} in {Path.cwd()}",
                next_step="flow consume CONFIG.toml   or   flow consume --module … NAME",
            )
    return _streams_of_files(files) if files else _streams_of_module(module, names, everything)


def _streams_of_module(module: str | None, names: Sequence[str], everything: bool) -> list[StreamingPipeline]:
    registry = load_project(module)
    wanted = resolve_streams(registry, names, everything=everything)
    return [registry.stream(name).handle for name in wanted]


def _streams_of_files(files: Sequence[str]) -> list[StreamingPipeline]:
    from ematix_flow.api.stream_toml import stream_from_toml
    from ematix_flow.api.streaming import StreamingPipeline
    from ematix_flow.graph.registry import current_registry

    found: dict[str, StreamingPipeline] = {}
    for file in files:
        spec = stream_from_toml(Path(file))
        if spec.name in found:
            raise UsageError(f"two of the files declare a stream {spec.name!r}: {', '.join(files)}")
        found[spec.name] = StreamingPipeline(spec, current_registry())
    return list(found.values())
