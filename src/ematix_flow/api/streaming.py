"""Declares and runs streams: ``@ematix.streaming_pipeline``, `run_streaming_pipeline`."""

from __future__ import annotations

import datetime as dt
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Literal, cast

from ematix_flow.api.option_checks import name_or_default
from ematix_flow.api.stream_options import Lookup, Source, build_stream
from ematix_flow.api.target import DeclaredTable, Target, read_column_names
from ematix_flow.errors import DeclarationError, did_you_mean
from ematix_flow.graph.registry import DeclaredStream, Registry, current_registry, use_registry
from ematix_flow.spec.location import SourceLocation, caller_location
from ematix_flow.spec.pipelines import ConnectionRef, DriftPolicy
from ematix_flow.spec.streams import (
    DeadLetterKind,
    Delivery,
    ErrorPolicy,
    StreamMode,
    StreamSpec,
    StreamTargetSpec,
)
from ematix_flow.streams.run_options import StreamRunOptions

if TYPE_CHECKING:
    from ematix_flow.engine.spark.settings import EngineSettings
    from ematix_flow.observe.observer import Observers
    from ematix_flow.observe.stream_listener import StreamListener
    from ematix_flow.observe.stream_metrics import StreamMetrics
    from ematix_flow.plan.stream_definition import StreamPlan
    from ematix_flow.streams.running_stream import RunningStream, StreamResult


# documented options that streams do not support yet
UNSUPPORTED_OPTIONS = ("window", "join", "cdc", "udfs", "aggregate_udfs", "state_store", "watermark")

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
        described = (
            options.pop("description", None) or (getattr(function, "__doc__", None) or "").strip() or None
        )
        spec = stream_spec(where, name=own, description=described, **options)
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


def stream_spec(
    where: SourceLocation | None,
    *,
    name: str,
    source: ConnectionRef | None = None,
    source_query: str | None = None,
    sources: Sequence[Source] | None = None,
    source_columns: Any = None,
    starting: str | dt.datetime | None = None,
    source_options: Mapping[str, Any] | None = None,
    csv_read_options: Mapping[str, Any] | None = None,
    json_read_options: Mapping[str, Any] | None = None,
    target: ConnectionRef | DeclaredTable | None = None,  # with target_connection=, the table
    target_connection: ConnectionRef | None = None,
    target_table: DeclaredTable | str | tuple[str, str] | None = None,
    target_topic: str | None = None,
    target_queue: str | None = None,
    target_partition_key_prefix: str | None = None,
    target_prefix: str | None = None,
    target_message_key_column: str | None = None,
    target_headers_column: str | None = None,
    target_partition_column: str | None = None,
    target_partition_by: Sequence[str] | None = None,
    target_primary_key: Sequence[str] | None = None,
    targets: Sequence[Target] | None = None,
    mode: StreamMode | Literal["scd1"] = "append",
    keys: Sequence[str] | None = None,
    update_columns: Sequence[str] | None = None,
    compare_columns: Sequence[str] | None = None,
    event_timestamp_column: str | None = None,
    transform_sql: str | None = None,
    transform_on_error: ErrorPolicy | None = None,
    dialect: str | None = None,
    lookups: Mapping[str, Lookup] | None = None,
    dead_letter_topic: str | None = None,
    dead_letter_table: str | None = None,
    dead_letter_connection: ConnectionRef | None = None,
    dlq_store: DeadLetterKind | None = None,
    dlq_max_attempts: int | None = None,
    idle_pause_ms: int = 500,
    max_rows_per_batch: int | None = None,
    delivery: Delivery | None = None,
    guarantee: Delivery | None = None,
    continue_on_target_failure: bool = False,
    on_drift: DriftPolicy = "error",
    fail_on_data_loss: bool = True,
    checkpoint: str | None = None,
    description: str | None = None,
) -> StreamSpec:
    """Build the spec from all options of a stream, as the decorator and the call take them."""
    if (source is None) == (sources is None):
        raise DeclarationError(
            "a streaming pipeline takes source= with source_query=, or sources=: give one of them",
            where=where,
        )
    if (target is None and target_connection is None) == (targets is None):
        raise DeclarationError(
            "a streaming pipeline takes target= or targets=, exactly one of them", where=where
        )
    if delivery is not None and guarantee is not None:
        raise DeclarationError("delivery= and guarantee= mean the same: give one of them", where=where)
    if target is not None and target_connection is not None and target_table is not None:
        raise DeclarationError(
            "with target_connection=, both target= and target_table= name the table: give one of them",
            where=where,
        )
    given, several = dict(locals()), (sources is not None, targets is not None)
    if sources is None:
        assert source is not None
        sources = [
            Source(
                source,
                source_query or "",
                starting,
                csv_read_options,
                json_read_options,
                source_options or {},
            )
        ]
    if targets is None:
        # with target_connection=, target= is the declared table, as in a batch pipeline; `Target` checks both
        if target_connection is None:
            connection, table = cast("ConnectionRef | None", target), target_table
        else:
            connection = target_connection
            table = target_table if target is None else cast("DeclaredTable", target)
        targets = [
            Target(
                connection=connection,
                table=table,
                topic=target_topic,
                queue=target_queue,
                partition_key_prefix=target_partition_key_prefix,
                prefix=target_prefix,
                message_key_column=target_message_key_column,
                headers_column=target_headers_column,
                partition_column=target_partition_column,
                partition_by=target_partition_by,
                primary_key=target_primary_key,
            )
        ]
    defaults = StreamTargetSpec(
        connection="default",
        mode=cast("StreamMode", mode),  # checked for each target that does not set its own mode
        keys=read_column_names("keys", keys, where) or (),
        update_columns=read_column_names("update_columns", update_columns, where),
        compare_columns=read_column_names("compare_columns", compare_columns, where),
        event_timestamp_column=event_timestamp_column,
    )
    spec = build_stream(
        name=name,
        sources=sources,
        targets=targets,
        defaults=defaults,
        where=where,
        transform_sql=transform_sql,
        transform_on_error=transform_on_error,
        dialect=dialect,
        lookups=lookups,
        source_columns=source_columns,
        dead_letter_topic=dead_letter_topic,
        dead_letter_table=dead_letter_table,
        dead_letter_connection=dead_letter_connection,
        dlq_store=dlq_store,
        dlq_max_attempts=dlq_max_attempts,
        idle_pause_ms=idle_pause_ms,
        max_rows_per_batch=max_rows_per_batch,
        delivery=delivery or guarantee,
        continue_on_target_failure=continue_on_target_failure,
        on_drift=on_drift,
        fail_on_data_loss=fail_on_data_loss,
        checkpoint=checkpoint,
        description=description,
    )
    if several[0]:
        _refuse_single_options("sources", _SINGLE_SOURCE_OPTIONS, given, where)
    if several[1]:
        _refuse_single_options("targets", _SINGLE_TARGET_OPTIONS, given, where)
    return spec


_SINGLE_SOURCE_OPTIONS = (
    "source_query",
    "starting",
    "source_options",
    "csv_read_options",
    "json_read_options",
)
_SINGLE_TARGET_OPTIONS = (
    "target_table",
    "target_topic",
    "target_queue",
    "target_partition_key_prefix",
    "target_prefix",
    "target_message_key_column",
    "target_headers_column",
    "target_partition_column",
    "target_partition_by",
    "target_primary_key",
)


def _refuse_single_options(
    several: str, options: Iterable[str], given: Mapping[str, Any], where: SourceLocation | None
) -> None:
    """Refuse options for a single source or target next to ``sources=`` or ``targets=``."""
    for option in options:
        if given[option] is not None:
            each = "Source(…)" if several == "sources" else "Target(…)"
            raise DeclarationError(
                f"{option}= is for a single {several[:-1]}; with {several}= set it in each {each}",
                where=where,
            )


def not_supported_error(feature: str, where: SourceLocation | None) -> DeclarationError:
    """The error for a documented feature that streams do not have yet."""
    return DeclarationError(f"{feature}: this version does not have it yet", where=where)


def _refuse_unknown_options(
    options: Mapping[str, Any], where: SourceLocation | None, also: Iterable[str] = ()
) -> None:
    """Raise an error with a suggestion at the user's line, instead of Python's TypeError."""
    known = {*inspect.signature(stream_spec).parameters, *also} - {"where", "options"}
    for option in options:
        if option in UNSUPPORTED_OPTIONS:
            raise not_supported_error(f"{option}=", where)
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
