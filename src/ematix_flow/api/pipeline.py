"""``@ematix.pipeline``: validates the options, builds a spec, registers it and returns a `Pipeline`."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ematix_flow.api import option_checks, unused_options
from ematix_flow.api.expectations import (
    check_quarantine_of_targets,
    expectations_of_function,
    read_expectations,
    split_pre_transforms,
)
from ematix_flow.api.function_options import build_functions
from ematix_flow.api.target import (
    DeclaredTable,
    Target,
    batch_table_spec,
    build_target,
    check_connection_file_options,
    read_column_names,
    read_mapping,
)
from ematix_flow.errors import DeclarationError
from ematix_flow.graph.registry import DeclaredPipeline, Registry, current_registry
from ematix_flow.spec.expectations import OnFail
from ematix_flow.spec.location import SourceLocation, caller_location
from ematix_flow.spec.pipelines import (
    DRIFT_POLICIES,
    FORCED_PATHS,
    GUARANTEES,
    Catchup,
    ConnectionRef,
    DeclaredMode,
    DeletePolicy,
    DriftPolicy,
    FileOptions,
    ForcedPath,
    Guarantee,
    PipelineSpec,
    RetryPolicy,
    SourceSpec,
    TargetSpec,
    refuse_incremental_truncate,
)
from ematix_flow.spec.udfs import PythonAggregateUdfHandle, PythonScalarUdfHandle

if TYPE_CHECKING:
    from ematix_flow.backends.maintenance import MaintenanceReport
    from ematix_flow.engine.spark.settings import EngineSettings
    from ematix_flow.observe.listener import Listener
    from ematix_flow.plan.definition import Plan
    from ematix_flow.plan.results import RunResult
    from ematix_flow.run.preview import Preview, Validation


class Pipeline:
    """A declared pipeline. Call it, or ``.sync()``, to run it; ``.plan()`` shows what a run would do."""

    def __init__(self, declared: DeclaredPipeline, registry: Registry) -> None:
        self._declared = dataclasses.replace(declared, handle=self)
        self._registry = registry
        self.__name__ = declared.spec.name
        self.__doc__ = declared.function.__doc__

    @property
    def spec(self) -> PipelineSpec:
        return self._declared.spec

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def function(self) -> Callable[..., Any]:
        """The decorated function itself."""
        return self._declared.function

    def sync(
        self,
        *,
        mode: DeclaredMode | None = None,
        keys: Sequence[str] | None = None,
        update_columns: Sequence[str] | None = None,
        compare_columns: Sequence[str] | None = None,
        force_path: ForcedPath | None = None,
        on_drift: DriftPolicy | None = None,
        max_shrink: float | None = None,
        allow_empty: bool | None = None,
        slot: dt.datetime | None = None,
        run_log: str | None = None,
        engine: str | EngineSettings | None = None,
        listener: Listener | None = None,
    ) -> RunResult:
        """Run the pipeline now and wait for it. An option given here replaces the declared one for this run.

        ``slot`` is the scheduled time of the run: a second run for the same slot loads nothing.
        Raises a FlowError when the run fails; the target is then unchanged.
        """
        from ematix_flow.graph.registry import use_registry
        from ematix_flow.run.context_setup import run_context
        from ematix_flow.run.pipeline import run_declared_pipeline

        target_options = {
            "mode": None if mode is None else option_checks.normalize_mode(mode, None),
            "keys": read_column_names("keys", keys, None),
            "update_columns": read_column_names("update_columns", update_columns, None),
            "compare_columns": read_column_names("compare_columns", compare_columns, None),
            "max_shrink": max_shrink,
            "allow_empty": allow_empty,
        }
        if slot is not None and slot.tzinfo is None:
            raise DeclarationError(
                f"slot= needs a time zone: {slot.isoformat()} has none",
                next_step="if it is in UTC, pass  slot=time.replace(tzinfo=datetime.timezone.utc)",
            )
        self._registry.check_pipeline(self.spec)
        declared = self._with_overrides(target_options, force_path=force_path, on_drift=on_drift)
        given = {"keys": keys, "update_columns": update_columns, "compare_columns": compare_columns}
        unused_options.check_matching_options(given, declared.spec.targets, self.spec.where)
        with (
            use_registry(self._registry),
            run_context(
                run_log=run_log, engine=engine, listener=listener, trigger="sync", slot=slot
            ) as context,
        ):
            return run_declared_pipeline(declared, context)

    def __call__(self) -> RunResult:
        return self.sync()

    def plan(self) -> Plan:
        """Return what a run would do now. Changes nothing."""
        from ematix_flow.graph.registry import use_registry
        from ematix_flow.run.context_setup import spark_starter
        from ematix_flow.run.pipeline import plan_pipeline

        self._registry.check_pipeline(self.spec)
        with use_registry(self._registry):
            return plan_pipeline(self._declared, spark_starter())

    def preview(self, rows: int = 10) -> Preview:
        """Return the plan and the first rows of the source. Changes nothing."""
        from ematix_flow.graph.registry import use_registry
        from ematix_flow.run.context_setup import spark_starter
        from ematix_flow.run.preview import preview

        with use_registry(self._registry):
            return preview(self._declared, spark_starter(), rows)

    def dry_run(self) -> RunResult:
        """Do everything except the commit, and count the rows. The target does not change."""
        from ematix_flow.graph.registry import use_registry
        from ematix_flow.run.context_setup import spark_starter
        from ematix_flow.run.preview import dry_run

        with use_registry(self._registry):
            return dry_run(self._declared, spark_starter())

    def validate(self) -> Validation:
        """Check the pipeline against source and target: SQL, columns, types. Changes nothing."""
        from ematix_flow.graph.registry import use_registry
        from ematix_flow.run.context_setup import spark_starter
        from ematix_flow.run.preview import validate

        with use_registry(self._registry):
            return validate(self._declared, spark_starter())

    def maintain(
        self,
        *,
        retain: dt.timedelta | str | None = None,
        zorder: Sequence[str] = (),
        force: bool = False,
        dry_run: bool = False,
    ) -> list[MaintenanceReport]:
        """Compact the lake tables that this pipeline loads, and delete files that no kept version needs.

        ``retain`` is how long versions are kept, such as ``"30d"``; the default is 7 days, and a shorter time
        needs ``force``. ``zorder`` names the columns to cluster the rows by. ``dry_run`` changes
        nothing and reports what would be done.
        """
        from ematix_flow.backends.maintenance import MaintenanceOptions
        from ematix_flow.graph.registry import use_registry
        from ematix_flow.run.context_setup import spark_starter
        from ematix_flow.run.maintenance import maintain_pipelines, require_lakes
        from ematix_flow.spec.durations import parse_duration

        retention = parse_duration("retain=", retain) if isinstance(retain, str) else retain
        options = MaintenanceOptions(
            retention, read_column_names("zorder", zorder, None) or (), dry_run=dry_run, force=force
        )
        with use_registry(self._registry):
            require_lakes([self._declared], spark_starter())
            outcomes = list(maintain_pipelines([self._declared], spark_starter(), options))
        for outcome in outcomes:
            if outcome.error is not None:
                raise outcome.error
        return [table for outcome in outcomes for table in outcome.tables]

    def _with_overrides(
        self,
        target_options: Mapping[str, Any],
        *,
        force_path: ForcedPath | None,
        on_drift: DriftPolicy | None,
    ) -> DeclaredPipeline:
        spec = self.spec
        given = {k: v for k, v in target_options.items() if v is not None}
        targets: tuple[TargetSpec, ...] = ()
        for declared in spec.targets:
            target = dataclasses.replace(declared, **given)
            option_checks.check_target(target, spec.where)
            if spec.source.incremental:
                refuse_incremental_truncate(target.mode, spec.where)
            keys = option_checks.resolve_keys(target.table, target.keys, target.mode, spec.where)
            targets += (dataclasses.replace(target, keys=keys),)
        if force_path is not None:
            option_checks.check_choice("force_path", force_path, FORCED_PATHS, None)
            spec = dataclasses.replace(spec, force_path=force_path)
        if on_drift is not None:
            option_checks.check_choice("on_drift", on_drift, DRIFT_POLICIES, None)
            spec = dataclasses.replace(spec, on_drift=on_drift)
        return dataclasses.replace(self._declared, spec=dataclasses.replace(spec, targets=targets))

    def __repr__(self) -> str:
        spec = self.spec
        into = ", ".join(f"{t.mode} into {t.label}" for t in spec.targets)
        return f"<Pipeline {spec.name}: {into}>"

    def _repr_html_(self) -> str:
        from html import escape

        spec = self.spec
        rows = [
            ("targets", ", ".join(f"{t.mode} into {t.label}" for t in spec.targets)),
            ("schedule", spec.schedule or "by hand"),
            ("depends on", ", ".join(spec.depends_on) or "nothing"),
            ("declared at", str(spec.where) if spec.where else ""),
        ]
        cells = "".join(f"<tr><th>{escape(k)}</th><td>{escape(v)}</td></tr>" for k, v in rows)
        return f"<b>{escape(spec.name)}</b><table>{cells}</table>"


def pipeline(
    *,
    target: DeclaredTable | None = None,
    targets: Sequence[Target] | None = None,
    target_connection: ConnectionRef | None = None,
    source_connection: ConnectionRef | None = None,
    schedule: str | None = None,
    timezone: str | None = None,
    catchup: Catchup = "last",
    mode: DeclaredMode = "append",
    name: str | None = None,
    source_table: str | None = None,
    column_map: Mapping[str, str] | None = None,
    keys: Sequence[str] | None = None,
    update_columns: Sequence[str] | None = None,
    compare_columns: Sequence[str] | None = None,
    event_timestamp_column: str | None = None,
    handle_deletes: DeletePolicy | None = None,
    incremental: bool = False,
    watermark_column: str | None = None,
    incremental_column: str | None = None,
    lag: float | dt.timedelta | None = None,
    on_drift: DriftPolicy = "error",
    force_path: ForcedPath | None = None,
    guarantee: Guarantee | None = None,
    max_shrink: float = 0.5,
    allow_empty: bool = False,
    continue_on_target_failure: bool = False,
    continue_on_failure: bool = False,
    transforms_pre: Sequence[Any] | None = None,
    transforms_post: Sequence[Any] | None = None,
    continue_on_failure_post: bool = False,
    expectations: Any = None,
    on_fail: OnFail | None = None,
    on_quality_failure: OnFail | None = None,
    alert_on_quality_warn: bool = False,
    quarantine: str | None = None,
    ttl_seconds: float | None = None,
    ttl: dt.timedelta | None = None,
    tags: Sequence[str] | None = None,
    depends_on: Sequence[Any] | None = None,
    upstream_freshness_secs: float | None = None,
    freshness_sla: str | float | dt.timedelta | None = None,
    freshness_column: str | None = None,
    retry: Mapping[str, Any] | RetryPolicy | None = None,
    csv_read_options: Mapping[str, Any] | None = None,
    json_read_options: Mapping[str, Any] | None = None,
    udfs: Sequence[PythonScalarUdfHandle] | None = None,
    aggregate_udfs: Sequence[PythonAggregateUdfHandle] | None = None,
) -> Callable[[Callable[..., Any]], Pipeline]:
    """Declare a load. The function returns the source's SQL, or nothing with ``source_table=``."""
    where = caller_location()
    if (target is None) == (targets is None):
        raise DeclarationError("a pipeline takes target= or targets=, exactly one of them", where=where)
    if ttl is not None and ttl_seconds is not None:
        raise DeclarationError("ttl= and ttl_seconds= mean the same: give one of them", where=where)
    option_checks.check_texts(
        where,
        source_table=source_table,
        watermark_column=watermark_column,
        incremental_column=incremental_column,
        event_timestamp_column=event_timestamp_column,
        freshness_column=freshness_column,
    )
    for option, value in (
        ("incremental", incremental),
        ("allow_empty", allow_empty),
        ("continue_on_target_failure", continue_on_target_failure),
        ("continue_on_failure", continue_on_failure),
        ("continue_on_failure_post", continue_on_failure_post),
    ):
        option_checks.check_flag(option, value, where)
    option_checks.check_choice("on_drift", on_drift, DRIFT_POLICIES, where)
    option_checks.check_choice("force_path", force_path, FORCED_PATHS, where)
    option_checks.check_choice("guarantee", guarantee, GUARANTEES, where)
    option_checks.check_schedule(schedule, timezone, where)
    unused_options.check_catchup(catchup, schedule, where)
    if continue_on_failure_post and not transforms_post:
        raise DeclarationError(
            "continue_on_failure_post= works with transforms_post=, which is not set", where=where
        )
    if upstream_freshness_secs is not None and not depends_on:
        raise DeclarationError(
            "upstream_freshness_secs= limits the age of an upstream's success, and depends_on= is not set",
            where=where,
        )
    source = _build_source(
        source_connection,
        source_table,
        column_map,
        incremental,
        watermark_column,
        incremental_column,
        lag,
        where,
    )
    reading = FileOptions(
        csv_read_options=read_mapping("csv_read_options", csv_read_options, where),
        json_read_options=read_mapping("json_read_options", json_read_options, where),
    )
    check_connection_file_options(source_connection or target_connection or "default", reading, where)
    source = dataclasses.replace(source, files=reading)
    defaults = TargetSpec(
        connection="default" if target_connection is None else target_connection,
        mode=option_checks.normalize_mode(mode, where),
        keys=read_column_names("keys", keys, where) or (),
        update_columns=read_column_names("update_columns", update_columns, where),
        compare_columns=read_column_names("compare_columns", compare_columns, where),
        event_timestamp_column=event_timestamp_column,
        handle_deletes=handle_deletes,
        ttl_seconds=option_checks.read_seconds("ttl_seconds", ttl if ttl is not None else ttl_seconds, where),
        max_shrink=max_shrink,
        allow_empty=allow_empty,
    )
    specs = _build_targets(target, targets, defaults, source, where)
    unused_options.check_target_defaults(
        {
            "target_connection": target_connection,
            "mode": None if mode == "append" else mode,
            "keys": keys,
            "update_columns": update_columns,
            "compare_columns": compare_columns,
        },
        targets or (),
        specs,
        where,
    )
    unused_options.check_column_map(source.column_map, specs, where)
    for spec in specs:
        unused_options.check_column_map(spec.column_map, [spec], where)
    pre, pre_rules, probes = split_pre_transforms(transforms_pre, where)
    steps, functions = option_checks.read_post_transforms(transforms_post, where)
    called = build_functions(
        udfs,
        aggregate_udfs,
        None if source_table is None else "works with SQL that calls them, and source_table= has none",
        where,
    )
    labels = option_checks.read_selector_names("tags", tags, where)
    option_checks.check_freshness_column(freshness_column, freshness_sla, specs, where)
    policy = retry if isinstance(retry, RetryPolicy) else RetryPolicy.from_mapping(retry or {}, where)

    def declare(function: Callable[..., Any]) -> Pipeline:
        arguments = option_checks.count_arguments(function, where)
        spec = PipelineSpec(
            name=option_checks.name_or_default(
                "pipeline", name, str(getattr(function, "__name__", "pipeline")), where
            ),
            function=f"{function.__module__}:{getattr(function, '__qualname__', 'pipeline')}",
            targets=specs,
            source=source,
            arguments=arguments,
            schedule=schedule,
            timezone=timezone,
            catchup=catchup,
            tags=labels,
            depends_on=_upstream_names(depends_on, where),
            upstream_freshness_seconds=option_checks.read_seconds(
                "upstream_freshness_secs", upstream_freshness_secs, where
            ),
            freshness_seconds=option_checks.read_duration("freshness_sla", freshness_sla, where),
            freshness_column=freshness_column,
            retry=policy,
            transforms_pre=option_checks.read_pre_transforms(pre, where),
            probes_pre=tuple(probe.name for probe in probes),
            expectations=read_expectations(
                expectations,
                others=(*pre_rules, *expectations_of_function(function)),
                on_fail=on_fail,
                on_quality_failure=on_quality_failure,
                alert_on_quality_warn=alert_on_quality_warn,
                quarantine=quarantine,
                where=where,
            ),
            transforms_post=steps,
            continue_on_failure_post=continue_on_failure_post,
            continue_on_target_failure=continue_on_target_failure or continue_on_failure,
            on_drift=on_drift,
            force_path=force_path,
            guarantee=guarantee,
            functions=called,
            description=(function.__doc__ or "").strip() or None,
            where=where,
        )
        check_quarantine_of_targets(spec.expectations, [each.connection for each in specs], where)
        registry = current_registry()
        handle = Pipeline(DeclaredPipeline(spec, function, None, functions, probes), registry)
        registry.add_pipeline(handle._declared)
        return handle

    return declare


def _build_source(
    connection: ConnectionRef | None,
    table: str | None,
    column_map: Mapping[str, str] | None,
    incremental: bool,
    watermark_column: str | None,
    incremental_column: str | None,
    lag: float | dt.timedelta | None,
    where: SourceLocation | None,
) -> SourceSpec:
    mark = watermark_column or incremental_column
    if incremental and mark is None:
        raise DeclarationError(
            "incremental=True needs watermark_column=: the column whose highest loaded value is remembered",
            where=where,
        )
    if watermark_column is not None and incremental_column is not None:
        raise DeclarationError(
            "watermark_column= and incremental_column= mean the same: give one of them", where=where
        )
    if watermark_column is not None and not incremental:
        raise DeclarationError("watermark_column= works with incremental=True, which is not set", where=where)
    if lag is not None and mark is None:
        raise DeclarationError(
            "lag= delays an incremental read, and this pipeline is not incremental", where=where
        )
    return SourceSpec(
        connection=connection,
        table=table,
        column_map=read_mapping("column_map", column_map, where),
        watermark_column=mark,
        lag_seconds=option_checks.read_seconds("lag", lag, where) or 0.0,
    )


def _build_targets(
    target: DeclaredTable | None,
    targets: Sequence[Target] | None,
    defaults: TargetSpec,
    source: SourceSpec,
    where: SourceLocation | None,
) -> tuple[TargetSpec, ...]:
    if targets is None:
        if isinstance(target, Target):
            raise DeclarationError(
                "target= takes a declared table; a Target(…) belongs in targets=",
                where=where,
                next_step="write targets=[Target(…)]",
            )
        specs = [dataclasses.replace(defaults, table=batch_table_spec(target, None, where))]
    else:
        option_checks.check_list("targets", targets, where)
        for item in targets:
            if not isinstance(item, Target):
                raise DeclarationError(f"targets= takes Target(…), not {item!r}", where=where)
        specs = [build_target(item, defaults, where) for item in targets]
        if not specs:
            raise DeclarationError("targets= is empty", where=where)
    out = []
    for spec in specs:
        option_checks.check_target(spec, where)
        if source.incremental:
            refuse_incremental_truncate(spec.mode, where)
        keys = option_checks.resolve_keys(spec.table, spec.keys, spec.mode, where)
        out.append(dataclasses.replace(spec, keys=keys))
    labels = [spec.label for spec in out]
    if len(set(labels)) != len(labels):
        raise DeclarationError(f"two targets of one pipeline are the same: {', '.join(labels)}", where=where)
    return tuple(out)


def _upstream_names(upstreams: Any, where: SourceLocation | None) -> tuple[str, ...]:
    given = upstreams if isinstance(upstreams, list | tuple) else [] if upstreams is None else [upstreams]
    found = [each if isinstance(each, str) else getattr(each, "name", None) for each in given]
    for name, each in zip(found, given, strict=True):
        if not isinstance(name, str):
            raise DeclarationError(f"depends_on= takes names or pipelines, not {each!r}", where=where)
    return tuple(dict.fromkeys(str(name) for name in found))
