"""The planner: asks source and targets, and builds a Plan from a declared pipeline. Changes nothing."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

from ematix_flow.backends.base import (
    Backend,
    BatchSource,
    LoadPlan,
    SourceColumn,
    SourceQuery,
    SparkSource,
    SparkTarget,
)
from ematix_flow.backends.sql.computed_table import computed_table_name, select_computed_sql
from ematix_flow.backends.sql.table_names import refuse_reserved, require_table_names
from ematix_flow.backends.sql.target import RelationalTarget
from ematix_flow.engine.connections import Connections, compare_connections
from ematix_flow.engine.planning.gates import plan_gate, refuse_shared_quarantine
from ematix_flow.engine.planning.source_range import (
    bound_range,
    late_warning,
    late_writers_in,
    range_in_source_names,
    source_range,
)
from ematix_flow.engine.planning.source_reader import source_reader
from ematix_flow.engine.planning.source_sql import SourceSql, source_reference, source_sql
from ematix_flow.engine.spark.column_types import columns_of_frame
from ematix_flow.engine.spark.machine_resources import usable_processors
from ematix_flow.errors import (
    DatabaseMissing,
    FlowError,
    PlanError,
    SchemaMismatch,
    SourceFailed,
    Unsupported,
)
from ematix_flow.graph.registry import DeclaredPipeline, current_registry
from ematix_flow.plan.decisions import Decision
from ematix_flow.plan.definition import Plan
from ematix_flow.plan.drift import judge_drift
from ematix_flow.plan.load_paths import LoadEndpoints, choose_paths, derive_guarantee
from ematix_flow.plan.matching_options import resolve_matching, with_deletion_marks
from ematix_flow.plan.shared_read import share_read
from ematix_flow.plan.stages import (
    ApplyRows,
    CopyRows,
    PrepareControlTables,
    RunPostTransform,
    Stage,
    TargetPlan,
    TransformRows,
)
from ematix_flow.plan.tuning import LoadShape, choose_tuning, tuned_value
from ematix_flow.spec.file_options import check_file_options, check_folder_options
from ematix_flow.spec.generated_names import internal_name
from ematix_flow.spec.pipelines import (
    FileOptions,
    PipelineSpec,
    TargetSpec,
    connection_label,
)
from ematix_flow.spec.tables import ColumnSpec, TableSpec
from ematix_flow.spec.types import DataType
from ematix_flow.strategies.projection import build_projection, check_columns, needs_projection
from ematix_flow.strategies.ranges import restrict_to_range


def build_plan(
    declared: DeclaredPipeline,
    connections: Connections,
    *,
    cores: int | None = None,
    without: Collection[str] = (),
) -> Plan:
    """Inspect source and targets, and build the plan. Every error points at the declaration.

    ``without`` names targets that cannot be reached: the plan leaves them out.
    """
    spec = declared.spec
    try:
        return _build_unlocated(
            declared, connections, usable_processors() if cores is None else cores, without
        )
    except FlowError as error:
        if isinstance(error, DatabaseMissing):
            _name_creator(error, spec)
        raise error.with_location(spec.where) from error.__cause__


def _name_creator(error: DatabaseMissing, spec: PipelineSpec) -> None:
    """Name the upstream that creates the missing database on its first run, if there is one."""
    error.created_by = current_registry().upstream_writer(spec.name, error.connection)
    if error.created_by is not None:
        error.next_step = (
            f"flow run {error.created_by}  creates it: {spec.name} depends on {error.created_by}, "
            "which loads into this connection; otherwise correct the path"
        )


@dataclass(frozen=True)
class _DescribedSource:
    """The inspected source, shared by all targets of the pipeline."""

    backend: Backend
    reader: BatchSource | SparkSource
    sql: str
    column_map: Mapping[str, str]
    columns: tuple[SourceColumn, ...]

    def for_target(self, target: TargetSpec) -> _DescribedSource:
        """The source with the target's ``column_map`` added."""
        if not target.column_map:
            return self
        return replace(self, column_map={**self.column_map, **dict(target.column_map)})


def _build_unlocated(
    declared: DeclaredPipeline, connections: Connections, cores: int, without: Collection[str]
) -> Plan:
    spec = declared.spec
    reference = source_reference(spec)
    backend = connections.backend(reference)
    for target in spec.targets:  # before Spark starts, so that it gets the jars of all of them
        connections.backend(target.connection)
    _check_file_options(spec, connections)
    reader = source_reader(spec, connections)
    asked = source_sql(declared, connections, reader)
    sql = asked.text
    reader = _without_spark(reader, asked, spec)
    if isinstance(reader, SparkSource):
        with connections.spark_errors(f"the source SQL of {spec.name!r}"):
            columns = columns_of_frame(reader.frame(connections.spark(), sql))
    else:
        with _source_table_errors(spec):
            columns = reader.describe(sql)
    _refuse_repeated_columns(columns, spec)
    refuse_reserved((c.name for c in columns), f"the source SQL of {spec.name!r}", spec.where)
    source = _DescribedSource(backend, reader, sql, asked.column_map, columns)
    wanted = [target for target in spec.targets if target.label not in without]
    endpoints = []
    for target in wanted:
        with _target_errors(target):
            endpoints.append(_endpoints(spec, target, source, connections))
    planned = []
    for target, path in zip(wanted, choose_paths(spec, endpoints), strict=True):
        with _target_errors(target):
            planned.append(_plan_target(spec, target, path, source, connections, cores))
    targets = tuple(planned)
    refuse_shared_quarantine(
        [(each.load.gate, connections.backend(each.target.connection)) for each in targets], spec.where
    )
    shared = None
    if len(spec.targets) > 1:
        ranges = [
            range_in_source_names(target.range, source.for_target(target.target).column_map)
            for target in targets
        ]
        targets, shared = share_read(
            sql, targets, ranges, computed_table_name(spec.name, spec.targets[0].label)
        )
    post = tuple(RunPostTransform(step, index) for index, step in enumerate(spec.transforms_post))
    return Plan(spec, connection_label(reference), backend.kind, sql, columns, targets, post, shared)


def _without_spark(
    reader: BatchSource | SparkSource, asked: SourceSql, spec: PipelineSpec
) -> BatchSource | SparkSource:
    """The source as batches, if tasks can read its rows themselves and nothing else has to be computed."""
    if isinstance(reader, BatchSource) or spec.force_path == "spark" or spec.source.incremental:
        return reader
    for target in spec.targets:
        columns = {**asked.column_map, **dict(target.column_map)}
        if target.partition_by or (target.table and _describe_computation(spec, target.table, columns)):
            return reader
        if target.table is None and (columns or spec.transforms_pre):
            return reader
    return reader.as_batches(asked.text) or reader


@contextmanager
def _source_table_errors(spec: PipelineSpec) -> Iterator[None]:
    """Explain an error in the SQL of source_table=, which we generate: a declared name must be wrong."""
    try:
        yield
    except SourceFailed as error:
        if spec.source.table is not None and "SQL" in (error.next_step or ""):
            error.what = error.what.replace(f"{internal_name('t')}.", "")
            error.next_step = "correct source_table=, column_map= or the columns of the declared table"
        raise


@contextmanager
def _target_errors(target: TargetSpec) -> Iterator[None]:
    """Mark an error in the block as an error of this target, so that the others can be planned without it."""
    try:
        yield
    except FlowError as error:
        error.target = target.label
        raise


def _check_file_options(spec: PipelineSpec, connections: Connections) -> None:
    """Check the file options against the resolved connections; the declaration may have known only their
    names.
    """
    source = connections.backend(source_reference(spec)).connection
    if spec.source.files != FileOptions():
        check_file_options(getattr(source, "format", None), spec.source.files, spec.where)
    for target in spec.targets:
        connection = connections.backend(target.connection).connection
        check_folder_options(connection.kind, target.prefix, target.partition_by, spec.where)
        if target.files != FileOptions():
            check_file_options(getattr(connection, "format", None), target.files, spec.where)


def _endpoints(
    spec: PipelineSpec, target: TargetSpec, source: _DescribedSource, connections: Connections
) -> LoadEndpoints:
    backend = connections.backend(target.connection)
    source = source.for_target(target)
    table = target.table or _inferred_table(target, source.columns)
    return LoadEndpoints(
        comparison=compare_connections(source.backend, backend),
        native_source=isinstance(source.reader, SparkSource),
        computes=_describe_computation(spec, table, source.column_map),
        target=backend.capabilities,
    )


def _plan_target(
    spec: PipelineSpec,
    target: TargetSpec,
    path: Decision,
    source: _DescribedSource,
    connections: Connections,
    cores: int,
) -> TargetPlan:
    backend = connections.backend(target.connection)
    source = source.for_target(target)
    sink = connections.target(target.connection).with_partitions(target.partition_by).with_files(target.files)
    capabilities = backend.capabilities
    if target.mode not in capabilities.strategies:
        raise Unsupported(
            f"mode {target.mode!r} cannot be used with a target of kind {backend.kind!r}",
            next_step=f"modes of {backend.kind}: {', '.join(sorted(capabilities.strategies))}",
        )
    table, matching = resolve_matching(spec, target, target.table or _inferred_table(target, source.columns))
    require_table_names(table, capabilities.max_identifier_bytes)
    names = [c.name for c in source.columns]
    check_columns(
        table=table,
        source_columns=names,
        pre=spec.transforms_pre,
        column_map=source.column_map,
        dialect=source.reader.dialect,
        where=spec.where,
    )

    source_backend = connections.backend(source_reference(spec))
    live = sink.inspect(table)
    wanted_range, reloaded = source_range(spec, table, target, connections, live)
    watermark_range, range_warnings, is_bounded = bound_range(
        wanted_range, table, source.reader, source.sql, source.column_map
    )
    late = None if is_bounded else late_writers_in(spec, source_backend)
    computes = _describe_computation(spec, table, source.column_map)
    guarantee = derive_guarantee(spec, capabilities, backend.kind, late)
    tuning = choose_tuning(
        LoadShape(
            path.value,
            source_backend.capabilities,
            capabilities,
            cores,
            source_bytes=_source_bytes(source) if capabilities.file_bytes else None,
            partition_by=target.partition_by,
        )
    )
    if isinstance(source.reader, SparkSource):
        tuning += tuple(Decision(each.key, each.value, each.reason) for each in source.reader.settings())
    if target.mode == "merge":
        table = with_deletion_marks(table, live)
    found = sink.plan_table(table, live, matching)
    changes, drift = judge_drift(spec.on_drift, table, found, spec.where)
    planned_gate = plan_gate(
        spec.expectations,
        table,
        matching,
        sink,
        backend.kind,
        spec.where,
        max_identifier_bytes=capabilities.max_identifier_bytes,
    )
    read = SourceQuery(source.sql, range_in_source_names(watermark_range, source.column_map))

    stages: list[Stage] = []
    if path.value == "same_db":
        assert isinstance(sink, RelationalTarget)
        computed = select_computed_sql(sink.dialect, computed_table_name(spec.name, spec.targets[0].label))
        projected, shared = (
            _project(
                spec, table, source, restrict_to_range(rows, read.range, sink.dialect), sink.dialect.name
            )
            for rows in (read.sql, computed)
        )
        stages += [PrepareControlTables(), ApplyRows(projected, shared if len(spec.targets) > 1 else None)]
    else:
        tasks = tuned_value(tuning, "read tasks", cores)
        if path.value == "copy":
            stages.append(CopyRows(read, tasks))
        else:
            view = internal_name(f"source_{uuid.uuid4().hex}")
            projection = _project(spec, table, source, f"SELECT * FROM {view}", "spark") if computes else None
            stages.append(
                TransformRows(
                    read,
                    projection,
                    view,
                    source.columns,
                    isinstance(source.reader, SparkSource),
                    tasks,
                    max_parts=tuned_value(tuning, "staging parts", 0) or None,
                    repartition_by=target.partition_by if capabilities.file_bytes else (),
                )
            )
        stages += [PrepareControlTables(), ApplyRows(by_commit=isinstance(sink, SparkTarget))]
    load = LoadPlan(
        table,
        target.mode,
        matching,
        watermark_range,
        max_shrink=target.max_shrink,
        allow_empty=target.allow_empty,
        files=target.files,
        partition_by=target.partition_by,
        table_plan=changes,
        gate=planned_gate.gate,
        quarantine_plan=planned_gate.quarantine_plan,
    )
    method = sink.commit_method(load)
    if method is not None:
        tuning += (Decision("commit", *method),)
    return TargetPlan(
        target,
        load,
        path,
        guarantee,
        tuple(stages),
        tuning,
        (
            *drift,
            *reloaded,
            *range_warnings,
            *late_warning(spec, late),
            *planned_gate.warnings,
            *(() if path.value == "same_db" else sink.warnings()),
        ),
    )


def _source_bytes(source: _DescribedSource) -> int | None:
    return source.reader.size_in_bytes(source.sql) if isinstance(source.reader, SparkSource) else None


def _project(spec: PipelineSpec, table: TableSpec, source: _DescribedSource, sql: str, dialect: str) -> str:
    return build_projection(
        source_sql=sql,
        table=table,
        source_columns=[c.name for c in source.columns],
        source_types={c.name: c.type for c in source.columns if c.type is not None},
        pre=spec.transforms_pre,
        column_map=source.column_map,
        dialect=dialect,
        where=spec.where,
    )


def _describe_computation(spec: PipelineSpec, table: TableSpec, column_map: Mapping[str, str]) -> str | None:
    if not needs_projection(table, spec.transforms_pre, column_map):
        return None
    parts = ["the renaming of " + ", ".join(column_map.values())] if column_map else []
    if any(c.normalizers for c in table.columns):
        parts.append("normalisation of " + ", ".join(c.name for c in table.columns if c.normalizers))
    if spec.transforms_pre:
        parts.append(", ".join(t.name for t in spec.transforms_pre))
    return " and ".join(parts)


def _inferred_table(target: TargetSpec, columns: tuple[SourceColumn, ...]) -> TableSpec:
    """The table of a file target without a declaration: the columns of the source."""
    if target.prefix is None:
        raise PlanError(f"target {target.label} declares neither a table nor a prefix")
    described = tuple(ColumnSpec(c.name, c.type or DataType("text"), nullable=True) for c in columns)
    return TableSpec(None, target.prefix, described)


def _refuse_repeated_columns(columns: tuple[SourceColumn, ...], spec: PipelineSpec) -> None:
    seen: set[str] = set()
    for column in columns:
        if column.name in seen:
            raise SchemaMismatch(
                f"the source SQL of {spec.name!r} yields column {column.name!r} twice",
                next_step="give one of them another name with AS",
            )
        seen.add(column.name)
