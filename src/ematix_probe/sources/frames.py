"""Data frames as a source: pandas, polars, pyarrow, Spark, and anything that gives Arrow batches.

A frame of pandas has no NULL next to NaN: in columns of numpy's types NaN, NaT and None are NULL. Columns
of Arrow's types keep both. The index of a frame of pandas is no column.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ematix_probe.errors import DeclarationError, SourceFailed
from ematix_probe.location import caller_location
from ematix_probe.sources.base import Source, Subject
from ematix_probe.sources.duckdb_scan import ScanSource, Workspace
from ematix_probe.sources.scans import BatchScan, DatasetScan, Scan, SpooledScan

if TYPE_CHECKING:
    import pyarrow as pa

_BATCH_ROWS = 65_536


def frame(obj: Any, name: str | None = None) -> Source:
    """A data frame. ``name`` is how reports and ``query=`` call it."""
    found = frame_source(obj, name)
    if found is None:
        raise DeclarationError(
            f"source.frame() takes a frame of pandas, polars, pyarrow or Spark, not {type(obj).__name__}",
            where=caller_location(),
        )
    return found


def frame_source(obj: Any, name: str | None = None) -> Source | None:
    """The source of a data frame; None for an object that is none."""
    if name is not None and (not isinstance(name, str) or not name.strip()):
        raise DeclarationError(f"name= takes a text, not {name!r}", where=caller_location())
    kind = frame_kind(obj)
    if kind is None:
        return None
    if kind == "spark":
        from ematix_probe.sources.spark import SparkSource

        if type(obj).__module__.startswith("pyspark.pandas"):
            obj = obj.to_spark()
        return SparkSource(session=obj.sparkSession, frame=obj, name=name or "frame")
    return FrameSource(obj, kind, name or "frame")


def frame_kind(obj: Any) -> str | None:
    """pandas, polars, pyarrow, spark or arrow; None for an object that is no frame. It imports nothing."""
    if isinstance(obj, type):
        return None
    root, _, _ = type(obj).__module__.partition(".")
    name = type(obj).__name__
    if root == "pyspark" and name == "DataFrame":
        return "spark"
    if root == "pandas" and name == "DataFrame":
        return "pandas"
    if root == "polars" and name in ("DataFrame", "LazyFrame"):
        return "polars"
    if root == "pyarrow" and (hasattr(obj, "__arrow_c_stream__") or hasattr(obj, "scanner")):
        return "pyarrow"
    if root == "pyarrow" and name in ("Scanner", "RecordBatch"):
        return "pyarrow"
    return "arrow" if hasattr(obj, "__arrow_c_stream__") else None


@dataclass(frozen=True, eq=False)
class FrameSource(ScanSource):
    """A frame in memory, or a stream of Arrow batches, which can be read once."""

    obj: Any = field(repr=False)
    kind: str = "pyarrow"
    name: str = "frame"

    @property
    def label(self) -> str:
        return f"{self.name} ({self.kind})" if self.name != "frame" else f"a frame of {self.kind}"

    @property
    def default_subject(self) -> Subject:
        return Subject(self.name)

    @property
    def is_single(self) -> bool:
        return True

    def scan(self, subject: Subject, workspace: Workspace) -> Scan:
        if subject.schema is not None or subject.table.lower() != self.name.lower():
            raise SourceFailed(
                f"there is no table {subject.label!r} next to a frame: it is one table, {self.name!r}",
            )
        try:
            return _scan_of(self.obj, self.kind)
        except Exception as error:
            libraries = type(error).__module__.partition(".")[0] in ("polars", "pyarrow")
            if not libraries and not isinstance(error, (ValueError, TypeError)):
                raise
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise SourceFailed(f"cannot read {self.label} as Arrow: {reason}") from error


def _scan_of(obj: Any, kind: str) -> Scan:
    import pyarrow as pa
    import pyarrow.dataset as ds

    if kind == "pandas":
        return _PandasScan(obj, _pandas_schema(obj))
    if kind == "polars":
        return _PolarsScan(obj, _polars_schema(obj))
    if isinstance(obj, pa.RecordBatch):
        return _TableScan(pa.Table.from_batches([obj]))
    if isinstance(obj, pa.Table):
        return _TableScan(obj)
    if isinstance(obj, ds.Dataset):
        return DatasetScan(obj)
    if isinstance(obj, ds.Scanner):
        return SpooledScan(obj.to_reader())
    return SpooledScan(_once(obj))


def _once(obj: Any) -> Any:
    """The stream of an object, read only once."""
    import pyarrow as pa

    reader = pa.RecordBatchReader.from_stream(obj)
    _check_names(reader.schema.names)
    return reader


def _check_names(names: Sequence[str]) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise SourceFailed(
            f"the frame has two columns with the name {twice[0]!r}", next_step="rename one of them"
        )


@dataclass(frozen=True)
class _TableScan(BatchScan):
    table: Any

    def __post_init__(self) -> None:
        _check_names(self.table.column_names)

    def schema(self) -> pa.Schema:
        return self.table.schema

    def read(self, columns: Sequence[str]) -> pa.RecordBatchReader:
        return self.table.select(list(columns)).to_reader(_BATCH_ROWS)


@dataclass(frozen=True)
class _PolarsScan(BatchScan):
    """A frame of polars; a lazy one is computed for each statement, in batches where polars can."""

    frame: Any
    arrow_schema: Any

    def schema(self) -> pa.Schema:
        return self.arrow_schema

    def read(self, columns: Sequence[str]) -> pa.RecordBatchReader:
        import polars.selectors
        import pyarrow as pa

        chosen = self.frame.select(polars.selectors.by_name(*columns))  # a text such as "*" means all columns
        schema = pa.schema([self.arrow_schema.field(name) for name in columns])
        if not _is_lazy(self.frame):
            parts: Iterator[Any] = iter(chosen.iter_slices(_BATCH_ROWS))
        elif hasattr(chosen, "collect_batches"):
            parts = iter(chosen.collect_batches(chunk_size=_BATCH_ROWS, maintain_order=False))
        else:
            parts = iter([chosen.collect(engine="streaming")])
        return pa.RecordBatchReader.from_batches(schema, _batches_of(parts, schema))


def _is_lazy(frame: Any) -> bool:
    return type(frame).__name__ == "LazyFrame"


def _polars_schema(frame: Any) -> pa.Schema:
    empty = frame.collect_schema().to_frame() if _is_lazy(frame) else frame.head(0)
    return empty.to_arrow().schema


def _batches_of(parts: Iterator[Any], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    for part in parts:
        yield from part.to_arrow().cast(schema).to_batches()


@dataclass(frozen=True)
class _PandasScan(BatchScan):
    """A frame of pandas, turned into Arrow slice by slice."""

    frame: Any
    arrow_schema: Any

    def schema(self) -> pa.Schema:
        return self.arrow_schema

    def read(self, columns: Sequence[str]) -> pa.RecordBatchReader:
        import pyarrow as pa

        schema = pa.schema([self.arrow_schema.field(name) for name in columns])
        chosen = self.frame[[_pandas_name(self.frame, name) for name in columns]]
        return pa.RecordBatchReader.from_batches(schema, self._slices(chosen, schema))

    def _slices(self, chosen: Any, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for start in range(0, len(chosen), _BATCH_ROWS):
            part = chosen.iloc[start : start + _BATCH_ROWS]
            arrays = [_arrow_values(part.iloc[:, i], each) for i, each in enumerate(schema)]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _arrow_values(column: Any, field: pa.Field) -> Any:
    import pyarrow as pa

    try:
        values = pa.array(column, type=field.type, from_pandas=True)
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise ValueError(f"the column {field.name!r} holds values of several types: {error}") from error
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values


def _pandas_schema(frame: Any) -> pa.Schema:
    """The Arrow types of all columns, from all values where the column may hold any object."""
    import pyarrow as pa

    names = [str(name) for name in frame.columns]
    _check_names(names)
    fields = []
    for position, name in enumerate(names):
        column = frame.iloc[:, position]
        try:
            if column.dtype == object:
                kind = pa.infer_type(column, from_pandas=True)
            else:
                kind = pa.array(column.iloc[:0], from_pandas=True).type
        except (pa.ArrowException, ValueError, TypeError) as error:
            raise SourceFailed(
                f"the column {name!r} of the frame holds values of several types: {error}",
                next_step="give the column one type, as in  frame.astype(…)",
            ) from error
        fields.append(pa.field(name, kind))
    return pa.schema(fields)


def _pandas_name(frame: Any, name: str) -> Any:
    """The frame's own name of a column, which may be no text."""
    return next(each for each in frame.columns if str(each) == name)
