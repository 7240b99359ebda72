"""Declares and runs streams: ``@ematix.streaming_pipeline``, `run_streaming_pipeline`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from ematix_flow.api.expectations import with_decorated_expectations
from ematix_flow.api.option_checks import name_or_default
from ematix_flow.api.stream_declaration import StreamOptions
from ematix_flow.api.stream_options import build_stream
from ematix_flow.errors import DeclarationError, did_you_mean
from ematix_flow.graph.registry import DeclaredStream, Registry, current_registry, use_registry
from ematix_flow.spec.location import SourceLocation, caller_location
from ematix_flow.spec.pipelines import ConnectionRef
from ematix_flow.spec.streams import (
    StreamSpec,
)
from ematix_flow.streams.run_options import StreamRunOptions

if TYPE_CHECKING:
    from ematix_flow.engine.spark.settings import EngineSettings
    from ematix_flow.observe.observer import Observers
    from ematix_flow.observe.stream_listener import StreamListener
    from ematix_flow.observe.stream_metrics import StreamMetrics
    from ematix_flow.plan.stream_definition import StreamPlan
    from ematix_flow.streams.running_stream import RunningStream, StreamResult


_RUN_OPTIONS = (*(option.name for option in fields(StreamRunOptions)), "available_now")


class StreamingPipeline:
    """A declared stream. ``.run()`` follows its source until stopped; ``.start()`` does not wait for it."""

    def __init__(self, spec: StreamSpec, registry: Registry) -> None:
        self._spec, self._registry = spec, registry
        self.__name__ = spec.name
        self.__doc__ = spec.description

    @property
    def spec(self) -> StreamSpec:
        return self._spec

    @property
    def name(self) -> str:
        return self._spec.name

    def plan(self, *, engine: str | EngineSettings | None = None) -> StreamPlan:
        """Return what a run would do. Changes nothing."""
        from ematix_flow.engine.planning.stream_guarantees import expected_targets
        from ematix_flow.run.context_setup import spark_starter
        from ematix_flow.run.pipeline import open_connections
        from ematix_flow.streams.running_stream import plan_stream

        plan = plan_stream(self._spec, self._registry, engine=engine)
        if plan.columns is not None:
            return plan
        with use_registry(self._registry):
            expected = expected_targets(self._spec, open_connections(spark_starter(engine)))
        return replace(plan, expected=expected)

    def run(
        self,
        *,
        once: bool = False,
        metrics_port: int | None = None,
        restart_on_error: bool = False,
        initial_backoff_ms: int = 1_000,
        max_backoff_ms: int = 60_000,
        max_restarts: int | None = None,
        reset_backoff_after_secs: float = 60,
        run_log: str | None = None,
        engine: str | EngineSettings | None = None,
        watch: StreamListener | None = None,
    ) -> StreamResult:
        """Follow the source until SIGTERM or Ctrl-C. With ``once``, load what is there now and end."""
        from ematix_flow.streams.running_stream import run_stream

        options = StreamRunOptions(
            once=once,
            metrics_port=metrics_port,
            restart_on_error=restart_on_error,
            initial_backoff_ms=initial_backoff_ms,
            max_backoff_ms=max_backoff_ms,
            max_restarts=max_restarts,
            reset_backoff_after_secs=reset_backoff_after_secs,
            run_log=run_log,
            engine=engine,
            watch=watch,
        )
        return run_stream(self._spec, self._registry, options)

    def start(
        self,
        *,
        once: bool = False,
        metrics_port: int | None = None,
        restart_on_error: bool = False,
        initial_backoff_ms: int = 1_000,
        max_backoff_ms: int = 60_000,
        max_restarts: int | None = None,
        reset_backoff_after_secs: float = 60,
        run_log: str | None = None,
        engine: str | EngineSettings | None = None,
        watch: StreamListener | None = None,
        metrics: StreamMetrics | None = None,
        observers: Observers | None = None,
        together_with: Iterable[StreamingPipeline] = (),
    ) -> RunningStream:
        """Start the stream in this process and return it; ``.stop()`` ends it after the current batch.

        With ``restart_on_error`` the stream starts again after a failure. The pause before it doubles from
        ``initial_backoff_ms`` to ``max_backoff_ms``. ``max_restarts`` limits the restarts in a row; a run
        that lasts ``reset_backoff_after_secs`` resets the count and the pause.

        Streams that run in one process may share ``watch``, ``metrics`` and ``observers``. Each names the
        others in ``together_with``, because Spark must start with the jars of all of them.
        """
        from ematix_flow.streams.running_stream import start_stream

        options = StreamRunOptions(
            once=once,
            metrics_port=metrics_port,
            restart_on_error=restart_on_error,
            initial_backoff_ms=initial_backoff_ms,
            max_backoff_ms=max_backoff_ms,
            max_restarts=max_restarts,
            reset_backoff_after_secs=reset_backoff_after_secs,
            run_log=run_log,
            engine=engine,
            watch=watch,
        )
        return start_stream(
            self._spec,
            self._registry,
            options,
            metrics=metrics,
            observers=observers,
            together_with=[each._spec for each in together_with],
        )

    def __call__(self) -> StreamResult:
        return self.run()

    def __repr__(self) -> str:
        read = ", ".join(source.label for source in self._spec.sources)
        into = ", ".join(f"{t.mode} into {t.label}" for t in self._spec.targets)
        return f"<StreamingPipeline {self.name}: {read} → {into}>"


class KafkaToKafkaEosPipeline(StreamingPipeline):
    """A stream that copies one Kafka topic to another exactly once.

    Each batch is one Kafka transaction, which also holds the batch's id and its position in the source. The
    consumer group's offsets are committed afterwards, for tools that watch the lag. This is a stream with
    ``delivery="exactly_once"``, and it takes the same options.
    """

    def __init__(
        self,
        *,
        name: str,
        source: ConnectionRef,
        source_topic: str,
        target_topic: str,
        target: ConnectionRef | None = None,
        **options: Any,
    ) -> None:
        where = caller_location()
        _refuse_unknown_options(options, where)
        if "delivery" in options or "guarantee" in options:
            raise DeclarationError(
                "KafkaToKafkaEosPipeline always delivers exactly once: leave delivery= and guarantee= out",
                where=where,
            )
        spec = stream_spec(
            where,
            name=name,
            source=source,
            source_query=source_topic,
            target=source if target is None else target,
            target_topic=target_topic,
            delivery="exactly_once",
            **options,
        )
        super().__init__(spec, current_registry())


def streaming_pipeline(
    *, name: str | None = None, **options: Any
) -> Callable[[Callable[..., Any]], StreamingPipeline]:
    """Declare a stream, with the options of ``run_streaming_pipeline``.

    The decorated function gives the stream its name and description; it is never called.
    """
    where = caller_location()
    _refuse_run_options(options, where)
    _refuse_unknown_options(options, where)

    def declare(function: Callable[..., Any]) -> StreamingPipeline:
        own = name_or_default("streaming pipeline", name, str(getattr(function, "__name__", "stream")), where)
        documented = (getattr(function, "__doc__", None) or "").strip() or None
        described = options.get("description") or documented
        spec = stream_spec(
            where, **{**with_decorated_expectations(options, function), "name": own, "description": described}
        )
        registry = current_registry()
        handle = StreamingPipeline(spec, registry)
        registry.add_stream(DeclaredStream(spec, handle))
        return handle

    return declare


def run_streaming_pipeline(
    *,
    once: bool = False,
    available_now: bool = False,
    metrics_port: int | None = None,
    restart_on_error: bool = False,
    initial_backoff_ms: int = 1_000,
    max_backoff_ms: int = 60_000,
    max_restarts: int | None = None,
    reset_backoff_after_secs: float = 60,
    run_log: str | None = None,
    engine: str | EngineSettings | None = None,
    **options: Any,
) -> StreamResult:
    """Declare a stream and run it until it is stopped; with ``once``, load what is there now and end."""
    from ematix_flow.streams.running_stream import run_stream

    where = caller_location()
    _refuse_unknown_options(options, where, also=inspect.signature(run_streaming_pipeline).parameters)
    if "name" not in options:
        raise DeclarationError("a streaming pipeline needs a name: pass name=", where=where)
    run_options = StreamRunOptions(
        once=once or available_now,
        metrics_port=metrics_port,
        restart_on_error=restart_on_error,
        initial_backoff_ms=initial_backoff_ms,
        max_backoff_ms=max_backoff_ms,
        max_restarts=max_restarts,
        reset_backoff_after_secs=reset_backoff_after_secs,
        run_log=run_log,
        engine=engine,
    )
    return run_stream(stream_spec(where, **options), current_registry(), run_options)


def stream_spec(where: SourceLocation | None, **options: Any) -> StreamSpec:
    """Build the spec from the options of a stream, as the decorator and the call take them."""
    return build_stream(StreamOptions(**options), where)


def _refuse_unknown_options(
    options: Mapping[str, Any], where: SourceLocation | None, also: Iterable[str] = ()
) -> None:
    """Raise an error with a suggestion at the user's line, instead of Python's TypeError."""
    known = {*(option.name for option in fields(StreamOptions)), *also} - {"options"}
    for option in options:
        if option not in known:
            raise DeclarationError(
                f"a streaming pipeline has no option {option!r}.{did_you_mean(option, known)}", where=where
            )


def _refuse_run_options(options: Mapping[str, Any], where: SourceLocation | None) -> None:
    for option in _RUN_OPTIONS:
        if option in options:
            raise DeclarationError(
                f"{option}= is an option of a run, not of the declaration",
                where=where,
                next_step="pass it to .run(), or give it to  flow consume",
            )
