"""The rules of a streaming pipeline: checks its options and builds its spec.

Decorator, call and TOML file all end in `build_stream`, so that each rule is written once.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from typing import Any, cast

from ematix_flow.api import option_checks
from ematix_flow.api.expectations import check_quarantine_of_targets, read_expectations
from ematix_flow.api.function_options import build_functions
from ematix_flow.api.stream_cdc import for_change_events
from ematix_flow.api.stream_dead_letters import build_dead_letters, resolve_error_policy
from ematix_flow.api.stream_declaration import Source, StreamOptions
from ematix_flow.api.stream_joins import check_join
from ematix_flow.api.stream_lookups import build_lookups
from ematix_flow.api.stream_windows import check_window
from ematix_flow.api.tables import table_spec
from ematix_flow.api.target import (
    Target,
    check_connection_file_options,
    known_connection,
    read_column_names,
    read_mapping,
)
from ematix_flow.api.unused_options import check_stream_matching_options
from ematix_flow.errors import DeclarationError, FlowError, did_you_mean
from ematix_flow.plan.stream_capabilities import (
    check_batch_limit,
    check_dead_letters,
    check_error_policy,
    check_quarantine,
    check_source_message_parts,
    check_target_message_parts,
)
from ematix_flow.spec.expectations import ExpectationsSpec
from ematix_flow.spec.location import SourceLocation
from ematix_flow.spec.pipelines import DRIFT_POLICIES, ConnectionRef, FileOptions
from ematix_flow.spec.streams import (
    BROKERS,
    DELIVERIES,
    STREAM_MODES,
    StreamMode,
    StreamSourceSpec,
    StreamSpec,
    StreamTargetSpec,
    require_time_zone,
)
from ematix_flow.spec.tables import TableSpec

_DESTINATION_OPTIONS = {
    "kafka": ("topic",),
    "rabbitmq": ("queue",),
    "pubsub": ("topic",),
    "kinesis": ("partition_key_prefix",),
    "object_store_local": ("prefix",),
    "object_store_s3": ("prefix",),
}
_TABLE_OPTION = ("table",)
_TARGET_TEXT_OPTIONS = (
    "mode",
    "topic",
    "queue",
    "prefix",
    "partition_key_prefix",
    "message_key_column",
    "headers_column",
    "partition_column",
    "event_timestamp_column",
)


def build_stream(options: StreamOptions, where: SourceLocation | None) -> StreamSpec:
    """Check the options and return the spec of a stream. Every error points at the declaration."""
    options.check_alternatives(where)
    sources, targets = options.all_sources(), options.all_targets()
    defaults = StreamTargetSpec(
        connection="default",
        mode=cast("StreamMode", options.mode),  # checked for each target that does not set its own mode
        keys=read_column_names("keys", options.keys, where) or (),
        update_columns=read_column_names("update_columns", options.update_columns, where),
        compare_columns=read_column_names("compare_columns", options.compare_columns, where),
        event_timestamp_column=options.event_timestamp_column,
    )
    delivery, transform_sql = options.delivery or options.guarantee, options.transform_sql
    if not isinstance(options.name, str) or not options.name.strip():
        raise DeclarationError("a streaming pipeline needs a name", where=where)
    option_checks.check_texts(
        where,
        transform_sql=transform_sql,
        dialect=options.dialect,
        dead_letter_topic=options.dead_letter_topic,
        dead_letter_table=options.dead_letter_table,
        checkpoint=options.checkpoint,
        description=options.description,
    )
    option_checks.check_flag("continue_on_target_failure", options.continue_on_target_failure, where)
    option_checks.check_flag("fail_on_data_loss", options.fail_on_data_loss, where)
    for option, listed in (("sources", sources), ("targets", targets)):
        if not isinstance(listed, (list, tuple)):
            raise DeclarationError(f"{option}= takes a list, not {listed!r}", where=where)
        if not listed:
            raise DeclarationError(f"{option}= is empty: a stream needs at least one", where=where)
    read = tuple(_build_source(source, where) for source in sources)
    option_checks.check_choice("delivery", delivery, DELIVERIES, where)
    option_checks.check_sql_dialect("dialect", options.dialect, where)
    option_checks.check_choice("on_drift", options.on_drift, DRIFT_POLICIES, where)
    option_checks.check_whole_number("idle_pause_ms", options.idle_pause_ms, 0, where)
    option_checks.check_whole_number("max_rows_per_batch", options.max_rows_per_batch, 1, where)
    if transform_sql is not None and not transform_sql.strip():
        transform_sql = None
    if options.dialect is not None and transform_sql is None:
        raise DeclarationError("dialect= works with transform_sql=, which is not set", where=where)
    letters = build_dead_letters(options, where)
    from_changes = options.cdc is not None
    built = tuple(_build_target(target, defaults, where, from_changes=from_changes) for target in targets)
    built = for_change_events(options, built, [_connection_kind(t.connection) for t in built], where)
    check_stream_matching_options(targets, defaults, built, where)
    labels = [target.label for target in built]
    if len(set(labels)) != len(labels):
        raise DeclarationError(f"two targets of one pipeline are the same: {', '.join(labels)}", where=where)
    spec = StreamSpec(
        name=options.name,
        sources=read,
        targets=built,
        transform_sql=transform_sql,
        dialect=options.dialect,
        lookups=build_lookups(options.lookups, transform_sql, where),
        functions=build_functions(
            options.udfs,
            options.aggregate_udfs,
            None if transform_sql else "works with transform_sql=, which is not set",
            where,
        ),
        window=options.window,
        join=options.join,
        watermark=options.watermark,
        state_store=options.state_store,
        cdc=options.cdc,
        expectations=_read_expectations(options, where),
        on_error=resolve_error_policy(options),
        dead_letters=letters,
        columns=None if options.source_columns is None else _declared_table(options.source_columns, where),
        idle_pause_ms=options.idle_pause_ms,
        max_rows_per_batch=options.max_rows_per_batch,
        delivery=delivery or "auto",
        continue_on_target_failure=options.continue_on_target_failure,
        on_drift=options.on_drift,
        fail_on_data_loss=options.fail_on_data_loss,
        checkpoint=options.checkpoint,
        description=options.description,
        where=where,
    )
    check_quarantine_of_targets(spec.expectations, [each.connection for each in built], where)
    check_join(spec)
    check_window(spec)
    kinds = [_connection_kind(source.connection) for source in read]
    check_source_message_parts(spec, kinds)
    check_batch_limit(spec, kinds)
    check_quarantine(spec, kinds)
    check_error_policy(spec, kinds)
    check_dead_letters(spec, kinds, _connection_kind(letters.connection))
    options.refuse_single_options(where)
    return spec


def _read_expectations(options: StreamOptions, where: SourceLocation | None) -> ExpectationsSpec:
    spec = read_expectations(
        options.expectations,
        on_fail=options.on_fail,
        on_quality_failure=options.on_quality_failure,
        alert_on_quality_warn=options.alert_on_quality_warn,
        quarantine=options.quarantine,
        where=where,
    )
    if spec and options.cdc is not None:
        raise DeclarationError(
            "expectations= are about rows, and with cdc= a batch holds change events, of which some have "
            "only a part of their columns",
            where=where,
            next_step="check the target with a data probe, in a separate pipeline",
        )
    return spec


def _connection_kind(reference: ConnectionRef | None) -> str | None:
    """The kind of a connection; None if there is none or it is not known yet."""
    known = known_connection(reference)
    return known.kind if known is not None else None


def _build_source(source: Source, where: SourceLocation | None) -> StreamSourceSpec:
    if not isinstance(source, Source):
        raise DeclarationError(f"sources= takes Source(…), not {source!r}", where=where)
    where = source.where or where
    named = isinstance(source.query, str) and source.query.strip()
    if not named and not (source.query == "" and _connection_kind(source.connection) == "kinesis"):
        raise DeclarationError(
            "a source needs source_query=: the topic, queue, subscription, folder or table to follow",
            where=where,
        )
    starting = source.starting
    if isinstance(starting, str) and starting not in ("earliest", "latest"):
        try:
            starting = dt.datetime.fromisoformat(starting.replace("Z", "+00:00"))
        except ValueError as error:
            raise DeclarationError(
                f"starting={source.starting!r} is neither earliest nor latest nor a time", where=where
            ) from error
    elif starting is not None and not isinstance(starting, (str, dt.datetime)):
        raise DeclarationError(
            f"starting={starting!s} is neither earliest nor latest nor a time", where=where
        )
    try:
        require_time_zone(starting)
    except DeclarationError as error:
        raise error.with_location(where) from None
    files = FileOptions(
        csv_read_options=read_mapping("csv_read_options", source.csv_read_options, where),
        json_read_options=read_mapping("json_read_options", source.json_read_options, where),
    )
    check_connection_file_options(source.connection, files, where)
    given = tuple(
        (str(key), _option_text(value))
        for key, value in read_mapping("source_options", source.options, where)
    )
    columns = None if source.columns is None else _declared_table(source.columns, where)
    return StreamSourceSpec(source.connection, source.query.strip(), starting, files, given, columns)


def _build_target(
    target: Target, defaults: StreamTargetSpec, where: SourceLocation | None, *, from_changes: bool
) -> StreamTargetSpec:
    if not isinstance(target, Target):
        raise DeclarationError(f"targets= takes Target(…), not {target!r}", where=where)
    where = target.where or where
    option_checks.check_texts(where, **{name: getattr(target, name) for name in _TARGET_TEXT_OPTIONS})
    connection = defaults.connection if target.connection is None else target.connection
    table, named = _read_table(target, where)
    if target.keys is not None and target.primary_key is not None:
        raise DeclarationError("keys= and primary_key= mean the same: give one of them", where=where)
    keys = (
        read_column_names("keys", target.keys, where)
        or read_column_names("primary_key", target.primary_key, where)
        or defaults.keys
    )
    mode = _normalize_stream_mode(target.mode or defaults.mode, where)
    partition_by = read_column_names("partition_by", target.partition_by, where) or ()
    check_connection_file_options(
        connection, target.file_options(), where, prefix=target.prefix, partition_by=partition_by
    )
    spec = StreamTargetSpec(
        connection=connection,
        table=table,
        table_name=named,
        prefix=target.prefix,
        topic=target.topic,
        queue=target.queue,
        partition_key_prefix=target.partition_key_prefix,
        message_key_column=target.message_key_column,
        headers_column=target.headers_column,
        partition_column=target.partition_column,
        mode=mode,
        keys=tuple(keys),
        update_columns=read_column_names("update_columns", target.update_columns, where)
        or defaults.update_columns,
        compare_columns=read_column_names("compare_columns", target.compare_columns, where)
        or defaults.compare_columns,
        event_timestamp_column=target.event_timestamp_column or defaults.event_timestamp_column,
        partition_by=tuple(partition_by),
        files=target.file_options(),
    )
    _check_destination(spec, where)
    if target.handle_deletes is not None:
        raise DeclarationError(
            "handle_deletes= deletes rows that are missing in the source, and a stream never has all rows",
            where=where,
        )
    if target.column_map is not None:
        raise DeclarationError(
            "column_map= is for batch targets: rename columns of a stream with AS in transform_sql",
            where=where,
        )
    if from_changes:  # `for_change_events` finds the keys, and the changes have times
        return spec
    if table is not None and mode != "append":
        spec = _with_resolved_keys(spec, table, where)
    elif mode != "append" and not spec.keys:
        raise DeclarationError(
            f"mode={mode!r} matches rows by key, and {spec.destination} has none",
            where=where,
            next_step="pass keys=, or declare the table with pk()",
        )
    if mode == "scd2" and spec.event_timestamp_column is None:
        raise DeclarationError(
            "mode='scd2' in a stream needs event_timestamp_column=: versions begin at the time of the event",
            where=where,
            next_step="pass event_timestamp_column=; _event_ts is the message's timestamp at the broker",
        )
    return spec


def _with_resolved_keys(
    spec: StreamTargetSpec, table: TableSpec, where: SourceLocation | None
) -> StreamTargetSpec:
    return replace(spec, keys=option_checks.resolve_keys(table, spec.keys, spec.mode, where))


def _check_destination(spec: StreamTargetSpec, where: SourceLocation | None) -> None:
    """Require the option that names a destination of this kind: a table, topic, queue or prefix."""
    given = {
        name: value
        for name, value in (
            ("table", spec.table or spec.table_name),
            ("topic", spec.topic),
            ("queue", spec.queue),
            ("partition_key_prefix", spec.partition_key_prefix),
            ("prefix", spec.prefix),
        )
        if value is not None
    }
    kind = _connection_kind(spec.connection)
    wanted = _DESTINATION_OPTIONS.get(kind or "", _TABLE_OPTION if kind else ())
    files = kind in ("object_store_local", "object_store_s3")
    fits = set(given) <= ({*wanted, "table"} if files else set(wanted)) if kind else True
    # Kinesis sends to the stream of its connection; the prefix only affects the partition keys
    if (not given and kind != "kinesis") or not fits:
        wants = (
            " or ".join(f"target_{name}=" for name in wanted)
            or "target_table=, target_topic= or another destination"
        )
        others = [f"target_{name}=" for name in given if name not in wanted]
        got = f", not {', '.join(others)}" if others else ""
        raise DeclarationError(f"a target of kind {kind or 'unknown'!s} needs {wants}{got}", where=where)
    sends = kind in BROKERS or (kind is None and spec.is_broker)
    if sends and spec.mode != "append":
        raise DeclarationError(f"a broker only takes mode='append', not {spec.mode!r}", where=where)
    if not sends:
        for option in ("message_key_column", "headers_column", "partition_column"):
            if getattr(spec, option) is not None:
                raise DeclarationError(f"{option}= is for brokers, and {spec.label} is not one", where=where)
    check_target_message_parts(spec, kind, where)


def _read_table(
    target: Target, where: SourceLocation | None
) -> tuple[TableSpec | None, tuple[str | None, str] | None]:
    """A declared table, or the name of one: ``("schema", "table")`` or ``"table"``."""
    given = target.table
    if given is None:
        return None, None
    if isinstance(given, str):
        schema, _, name = given.rpartition(".")
        if not name:
            raise DeclarationError(f"target_table={given!r} names no table", where=where)
        return None, (schema or None, name)
    if isinstance(given, (tuple, list)):
        if len(given) != 2 or not all(isinstance(part, str) for part in given) or not given[1]:
            raise DeclarationError(
                f"target_table= takes (schema, name) or a declared table, not {given!r}", where=where
            )
        return None, (given[0] or None, given[1])
    return _declared_table(given, where), None


def _declared_table(given: Any, where: SourceLocation | None) -> TableSpec:
    try:
        return given if isinstance(given, TableSpec) else table_spec(given)
    except FlowError as error:
        raise error.with_location(where) from None


def _normalize_stream_mode(mode: str, where: SourceLocation | None) -> StreamMode:
    name = "merge" if mode == "scd1" else mode
    for known in STREAM_MODES:
        if name == known:
            return known
    hint = did_you_mean(str(mode), STREAM_MODES)
    why = " A stream never has all rows, so it cannot truncate." if mode == "truncate" else hint
    raise DeclarationError(f"a stream has no mode={mode!r}.{why}", where=where)


def _option_text(value: Any) -> str:
    return ("true" if value else "false") if isinstance(value, bool) else str(value)
