"""Builds the source SQL of a declared pipeline."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ematix_flow.backends.base import BatchSource, SparkSource
from ematix_flow.engine.connections import Connections
from ematix_flow.engine.live_connection import LiveConnection
from ematix_flow.errors import DeclarationError, FlowError, PlanError
from ematix_flow.graph.registry import DeclaredPipeline
from ematix_flow.spec.pipelines import ConnectionRef, PipelineSpec, TargetSpec
from ematix_flow.strategies.raw_sql import one_statement


def source_reference(spec: PipelineSpec) -> ConnectionRef:
    """The connection of the source: the declared one, or that of the first target."""
    return spec.source.connection if spec.source.connection is not None else spec.targets[0].connection


@dataclass(frozen=True)
class SourceSql:
    """The SQL, and the renames {declared column: source column} still to be done on its result."""

    text: str
    column_map: Mapping[str, str]


def source_sql(
    declared: DeclaredPipeline, connections: Connections, source: BatchSource | SparkSource
) -> SourceSql:
    """The SQL that the function returns, or a SELECT of the declared columns from ``source_table``."""
    spec = declared.spec
    given = _call_function(declared, connections)
    if isinstance(given, str):
        if not given.strip():
            raise DeclarationError(
                f"the function of pipeline {spec.name!r} returned an empty string",
                where=spec.where,
                next_step='return "SELECT …" from the function, or nothing and declare source_table=',
            )
        if spec.source.table is not None:
            raise DeclarationError(
                f"the function of pipeline {spec.name!r} returned SQL, and source_table= is "
                "declared: one of them would not be read",
                where=spec.where,
                next_step="return nothing from the function, or leave source_table= out",
            )
        return SourceSql(one_statement(given, source.dialect), dict(spec.source.column_map))
    if given is not None:
        raise DeclarationError(
            f"the function of pipeline {spec.name!r} returned {type(given).__name__}, not SQL",
            where=spec.where,
            next_step="return the SQL as a string, or return nothing and declare source_table=",
        )
    if spec.source.table is None:
        raise DeclarationError(
            f"the function of pipeline {spec.name!r} returned nothing, and no source_table= is declared",
            where=spec.where,
            next_step='return "SELECT …" from the function, or declare source_table="schema.table"',
        )
    columns = _table_columns(spec, spec.targets[0])
    if any(target.column_map for target in spec.targets):  # each target does its own renames
        plain = [(name, name) for name in dict.fromkeys(source for _, source in columns)]
        return SourceSql(source.table_query(spec.source.table, plain), dict(spec.source.column_map))
    return SourceSql(source.table_query(spec.source.table, columns), {})


def _table_columns(spec: PipelineSpec, target: TargetSpec) -> list[tuple[str, str]]:
    """(declared column, source column) pairs, without derived columns. Empty: every column."""
    table = target.table
    if table is None:
        return []
    mapping = dict(spec.source.column_map) | dict(target.column_map)
    derived = {c.name for c in table.columns if c.normalizers and c.normalizers[0].name == "derive"}
    return [(name, mapping.get(name, name)) for name in table.column_names if name not in derived]


def _call_function(declared: DeclaredPipeline, connections: Connections) -> Any:
    spec = declared.spec
    references = [source_reference(spec), spec.targets[0].connection][: spec.arguments]
    arguments = [LiveConnection(connections, reference) for reference in references]
    try:
        given = declared.function(*arguments)
        return asyncio.run(given) if inspect.iscoroutine(given) else given
    except FlowError as error:
        raise error.with_location(spec.where) from error
    except (Exception, SystemExit, GeneratorExit) as error:  # SystemExit would end the command as a success
        line = _error_line(declared, error)
        raise PlanError(
            f"the function of pipeline {spec.name!r} raised {type(error).__name__}: {error}{line}",
            where=spec.where,
            state="nothing was read or written",
            next_step="run it again with --debug to see the traceback of the function",
        ) from error


def _error_line(declared: DeclaredPipeline, error: BaseException) -> str:
    code = getattr(declared.function, "__code__", None)
    frame = error.__traceback__
    while frame is not None:
        if code is not None and frame.tb_frame.f_code is code:
            return f" (line {frame.tb_lineno})"
        frame = frame.tb_next
    return ""
