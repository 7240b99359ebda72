"""The aggregates of a window in three forms: of one batch (Spark), kept (state), and as the result.

A kept aggregate is a function of the rows alone: it does not depend on how they came in batches. The only
exceptions are sums of floats, whose last digits depend on the order of the additions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ematix_flow.engine.streams.batch_frames import quote
from ematix_flow.engine.streams.state.values import state_type, to_state
from ematix_flow.plan.window_columns import FLOATS, INTEGERS, aggregate_type
from ematix_flow.spec.generated_names import internal_name
from ematix_flow.spec.types import DataType
from ematix_flow.spec.windows import Aggregation

if TYPE_CHECKING:
    import duckdb

EVENT = internal_name("event")  # Spark's column with the event time in microseconds
SKETCH_BITS = 14  # 0.8 % standard error


@dataclass(frozen=True)
class StateField:
    """One kept column. ``united`` is SQL of the state: an aggregate over kept rows and rows of batches."""

    name: str
    batch: str  # Spark SQL, an aggregate over the rows of a batch
    type: str
    united: str


@dataclass(frozen=True)
class Accumulator:
    fields: tuple[StateField, ...]
    result: str  # SQL of the state over the kept columns
    result_type: DataType


def build_accumulators(
    aggregations: Sequence[Aggregation], types: Mapping[str, DataType]
) -> tuple[Accumulator, ...]:
    return tuple(_accumulator(f"a{n}", each, dict(types)) for n, each in enumerate(aggregations))


def _accumulator(name: str, each: Aggregation, types: dict[str, DataType]) -> Accumulator:
    result_type = aggregate_type(each, types)
    if each.column is None:
        return Accumulator((_sum_field(name, "count(1)", "BIGINT"),), name, result_type)
    column, read = each.column, types[each.column]
    if each.agg == "count_col":
        return Accumulator((_sum_field(name, f"count({quote(column)})", "BIGINT"),), name, result_type)
    if each.agg == "sum":
        kept = state_type(result_type)
        batch = f"CAST(sum({quote(column)}) AS {_spark_sum_type(result_type)})"
        return Accumulator((_sum_field(name, batch, kept),), name, result_type)
    if each.agg == "avg":
        return _average(name, column, read, result_type)
    if each.agg == "count_distinct":
        return _distinct(name, column, read, result_type)
    if each.agg in ("first", "last"):
        return _first_or_last(name, each.agg, column, read, result_type)
    field = StateField(name, f"{each.agg}({to_state(column, read)})", state_type(read), f"{each.agg}({name})")
    return Accumulator((field,), name, result_type)


def _spark_sum_type(result_type: DataType) -> str:
    if result_type.kind == "numeric":
        return f"DECIMAL(38,{result_type.scale})"
    return "BIGINT" if result_type.kind == "big_int" else "DOUBLE"


def _sum_field(name: str, batch: str, kept: str) -> StateField:
    return StateField(name, batch, kept, f"CAST(sum({name}) AS {kept})")


def _average(name: str, column: str, read: DataType, result_type: DataType) -> Accumulator:
    """The exact sum and the count, so that the average does not depend on the batches."""
    value, kept = quote(column), "DOUBLE"
    if read.kind not in FLOATS:
        kept = f"DECIMAL(38,{0 if read.kind in INTEGERS else read.scale})"
        value = f"CAST({value} AS {kept})"
    total, count = f"{name}_sum", f"{name}_count"
    fields = (
        _sum_field(total, f"CAST(sum({value}) AS {kept})", kept),
        _sum_field(count, f"count({quote(column)})", "BIGINT"),
    )
    return Accumulator(fields, f"CAST({total} AS DOUBLE) / nullif({count}, 0)", result_type)


def _first_or_last(name: str, agg: str, column: str, read: DataType, result_type: DataType) -> Accumulator:
    """The value with the lowest or highest event time; of values with the same time, the lowest or highest.

    Nulls are left out, as in all other aggregates.
    """
    function = "min" if agg == "first" else "max"
    value, at = to_state(column, read), f"{name}_at"
    picked = f"({function}(struct({EVENT} AS at, {value} AS v)) FILTER (WHERE {quote(column)} IS NOT NULL))"
    kept = f"({function}({{'at': {at}, 'v': {name}}}) FILTER (WHERE {at} IS NOT NULL))"
    fields = tuple(
        StateField(field, f"{picked}.{part}", data_type, f"{kept}.{part}")
        for field, part, data_type in ((name, "v", state_type(read)), (at, "at", "BIGINT"))
    )
    return Accumulator(fields, name, result_type)


def _distinct(name: str, column: str, read: DataType, result_type: DataType) -> Accumulator:
    """A HyperLogLog sketch of the DataSketches library, which Spark makes and the library unites."""
    value = quote(column)
    if read.kind not in (*INTEGERS, "bytes"):
        value = f"concat('=', CAST({value} AS STRING))"  # a sketch leaves out empty texts
    field = StateField(
        name, f"hll_sketch_agg({value}, {SKETCH_BITS})", "BLOB", f"unite_sketches(list({name}))"
    )
    return Accumulator((field,), f"sketch_estimate({name})", result_type)


# ------------------------------------------------------------------ sketches


def add_sketch_functions(state: duckdb.DuckDBPyConnection) -> None:
    """Functions over sketches for the state's SQL. A state that stays in memory already has them."""
    import duckdb

    known = "SELECT count(*) FROM duckdb_functions() WHERE function_name = 'unite_sketches'"
    if state.execute(known).fetchall() != [(0,)]:
        return
    blob, number = duckdb.sqltype("BLOB"), duckdb.sqltype("BIGINT")
    options: dict[str, Any] = {"type": "arrow", "null_handling": "special"}
    state.create_function("unite_sketches", _unite_sketches, [duckdb.sqltype("BLOB[]")], blob, **options)
    state.create_function("sketch_estimate", _sketch_estimates, [blob], number, **options)


def _unite_sketches(lists: Any) -> Any:  # DuckDB evaluates the annotations
    import pyarrow as pa
    from datasketches import hll_sketch, hll_union

    united: list[bytes | None] = []
    for sketches in lists.to_pylist():
        given = [sketch for sketch in sketches or () if sketch is not None]
        if len(given) < 2:
            united.append(given[0] if given else None)
            continue
        union = hll_union(SKETCH_BITS)
        for sketch in given:
            union.update(hll_sketch.deserialize(sketch))
        united.append(union.get_result().serialize_compact())
    return pa.array(united, pa.binary())


def _sketch_estimates(sketches: Any) -> Any:
    import pyarrow as pa
    from datasketches import hll_sketch

    return pa.array(
        [
            0 if sketch is None else round(hll_sketch.deserialize(sketch).get_estimate())
            for sketch in sketches.to_pylist()
        ],
        pa.int64(),
    )
