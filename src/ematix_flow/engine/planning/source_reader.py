"""Opens a pipeline's source, and tells it which columns its targets store as text.

A text file has no column types: a column is read as numbers or times if all its cells are. A column that a
target stores as text must stay as it is written, or 2.00 would arrive as 2.
"""

from __future__ import annotations

from ematix_flow.backends.base import BatchSource, SparkSource
from ematix_flow.engine.connections import Connections
from ematix_flow.engine.planning.source_functions import with_functions
from ematix_flow.engine.planning.source_sql import source_reference
from ematix_flow.spec.pipelines import PipelineSpec, TargetSpec
from ematix_flow.spec.tables import ColumnSpec

_TEXT_KINDS = ("text", "string", "json", "jsonb", "uuid")


def source_reader(spec: PipelineSpec, connections: Connections) -> BatchSource | SparkSource:
    """The open source of a pipeline, with its functions and the text columns of its targets."""
    reference = source_reference(spec)
    reader = connections.source(reference, spec.source.files)
    if isinstance(reader, SparkSource):
        reader = reader.with_text_columns(text_columns(spec))
    return with_functions(reader, spec, connections.backend(reference).kind)


def text_columns(spec: PipelineSpec) -> frozenset[str]:
    """The text columns, by their names in the result of the source SQL.

    Excludes computed and compared columns.
    """
    if spec.transforms_pre or any(target.table is None for target in spec.targets):
        return frozenset()
    is_text: dict[str, bool] = {}
    expressions: list[str] = []
    for target in spec.targets:
        for column in target.table.columns if target.table is not None else ():
            expressions += [str(m["expr"]).lower() for m in column.normalizers if m.name in ("derive", "sql")]
            for name in _result_names(spec, target, column):
                is_text[name] = is_text.get(name, True) and _is_kept_as_text(column)
            if column.name == spec.source.watermark_column:
                is_text |= dict.fromkeys(_result_names(spec, target, column), False)
    return frozenset(
        name
        for name, kept in is_text.items()
        if kept and not any(name.lower() in expression for expression in expressions)
    )


def _result_names(spec: PipelineSpec, target: TargetSpec, column: ColumnSpec) -> set[str]:
    """The names of a column in the source result: it may be renamed in the SQL or after it."""
    mapping = {**dict(spec.source.column_map), **dict(target.column_map)}
    return {column.name, mapping.get(column.name, column.name)}


def _is_kept_as_text(column: ColumnSpec) -> bool:
    return column.type.kind in _TEXT_KINDS and not any(
        m.name in ("derive", "sql") for m in column.normalizers
    )
