"""``@udf`` and ``@udaf``: Python functions over Arrow arrays that ``transform_sql`` calls by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ematix_flow.errors import DeclarationError
from ematix_flow.spec.location import SourceLocation, caller_location
from ematix_flow.spec.udf_types import UdfType, parse_udf_type
from ematix_flow.spec.udfs import PythonAggregateUdfHandle, PythonScalarUdfHandle

if TYPE_CHECKING:
    import pyarrow as pa


def udf(
    *, args: Sequence[str], returns: str, name: str | None = None
) -> Callable[[Callable[..., Any]], PythonScalarUdfHandle]:
    """Declare a function of SQL: it takes an Arrow array for each argument and returns one of that length.

    ``args`` and ``returns`` are names of types, such as ``"Float64"``, ``"Utf8"``, ``"Timestamp"``,
    ``"Decimal(18, 4)"`` or ``"List(Int64)"``. The name in SQL is that of the function unless ``name`` is set.
    """
    where = caller_location()
    takes, gives = _types("args", args, where), _type("returns", returns, where)

    def declare(function: Callable[..., Any]) -> PythonScalarUdfHandle:
        if not callable(function) or isinstance(function, type):
            raise DeclarationError(f"@udf decorates a function, not {function!r}", where=where)
        own = name if name is not None else str(getattr(function, "__name__", ""))
        handle = PythonScalarUdfHandle(own, takes, gives, function, where)
        _keep_names(handle, function)
        return handle

    return declare


def udaf(
    *, args: Sequence[str], state: Sequence[str], returns: str, name: str | None = None
) -> Callable[[type[Any]], PythonAggregateUdfHandle]:
    """Declare an aggregate function of SQL: a class that accumulates the rows of one group.

    ``update_batch(*arrays)`` adds rows, ``evaluate()`` returns an Arrow array with the result. ``state()``
    returns an array of length one for each type in ``state``, and ``merge_batch(*arrays)`` adds such states.
    """
    where = caller_location()
    takes, holds = _types("args", args, where), _types("state", state, where)
    gives = _type("returns", returns, where)

    def declare(accumulator: type[Any]) -> PythonAggregateUdfHandle:
        if not isinstance(accumulator, type):
            raise DeclarationError(f"@udaf decorates a class, not {accumulator!r}", where=where)
        own = name if name is not None else accumulator.__name__
        handle = PythonAggregateUdfHandle(own, takes, holds, gives, accumulator, where)
        _keep_names(handle, accumulator)
        return handle

    return declare


def apply_udf_to_batch(
    handle: PythonScalarUdfHandle,
    batch: pa.RecordBatch,
    arg_columns: Sequence[str],
    *,
    output_column: str = "result",
) -> pa.RecordBatch:
    """Call the function on columns of a batch and add its result as a column, for tests of a function."""
    import pyarrow as pa

    from ematix_flow.engine.execution.udf_calls import ScalarCall

    result = ScalarCall.of(handle).compute(_argument_columns(handle, batch, arg_columns))
    return pa.RecordBatch.from_arrays([*batch.columns, result], [*batch.schema.names, output_column])


def apply_udaf_to_batch(
    handle: PythonAggregateUdfHandle,
    batch: pa.RecordBatch,
    arg_columns: Sequence[str],
    *,
    output_column: str = "result",
) -> pa.RecordBatch:
    """Aggregate columns of a batch as one group, for tests of a function. The result has one row."""
    import pyarrow as pa

    from ematix_flow.engine.execution.udf_calls import AggregateCall

    result = AggregateCall.of(handle).compute(_argument_columns(handle, batch, arg_columns))
    return pa.RecordBatch.from_arrays([result], [output_column])


def _argument_columns(
    handle: PythonScalarUdfHandle | PythonAggregateUdfHandle, batch: pa.RecordBatch, names: Sequence[str]
) -> list[pa.Array]:
    if len(names) != len(handle.args):
        raise DeclarationError(
            f"the function {handle.name!r} takes {len(handle.args)} arguments, not {len(names)}",
            where=caller_location(),
        )
    missing = [name for name in names if name not in batch.schema.names]
    if missing:
        raise DeclarationError(f"the batch has no column {missing[0]!r}", where=caller_location())
    return [batch.column(name) for name in names]


def _types(option: str, names: Sequence[str], where: SourceLocation | None) -> tuple[UdfType, ...]:
    if isinstance(names, str) or not isinstance(names, Sequence) or not names:
        raise DeclarationError(
            f"{option}= lists at least one type, not {names!r}",
            where=where,
            next_step=f'write  {option}=("Float64",)',
        )
    return tuple(_type(option, name, where) for name in names)


def _type(option: str, name: str, where: SourceLocation | None) -> UdfType:
    try:
        return parse_udf_type(name)
    except DeclarationError as error:
        error.what = f"{option}=: {error.what}"
        raise error.with_location(where) from None


def _keep_names(handle: object, decorated: Any) -> None:
    """Let the handle look like what it decorates, for documentation and tracebacks."""
    for attribute in ("__module__", "__qualname__", "__doc__"):
        object.__setattr__(handle, attribute, getattr(decorated, attribute, None))
