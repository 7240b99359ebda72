"""``@ematix.pipeline``: validates the options, builds a spec, registers it and returns a `Pipeline`."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ematix_flow.api import option_checks, unused_options
from ematix_flow.api.expectations import (
    check_quarantine_of_targets,
    expectations_of_function,
    read_expectations,
    refuse_dead_letters,
    split_pre_transforms,
)
from ematix_flow.api.function_options import build_functions
from ematix_flow.api.pipeline_handle import Pipeline
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
from ematix_flow.graph.registry import DeclaredPipeline, current_registry
from ematix_flow.spec.expectations import DeadLetters, OnFail
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
    SourceSpec,
    TargetSpec,
    refuse_incremental_truncate,
)
from ematix_flow.spec.retry_policy import RetryPolicy
from ematix_flow.spec.udfs import PythonAggregateUdfHandle, PythonScalarUdfHandle


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
    quarantine: str | DeadLetters | None = None,
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
        refuse_dead_letters(spec.expectations, where)
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
