"""``@udf`` and ``@udaf``: Python functions over Arrow arrays that ``transform_sql`` calls by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ematix_flow.errors import DeclarationError
from ematix_flow.spec.location import SourceLocation, caller_location
from ematix_flow.spec.udf_types import UdfType, parse_udf_type
from ematix_flow.spec.udfs import PythonAggregateUdfHandle, PythonScalarUdfHandle, UdfHandle

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
        own = name if name is not None else str(getattr(accumulator, "__name__", ""))
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

    arguments = _argument_columns(handle, PythonScalarUdfHandle, batch, arg_columns, output_column)
    result = ScalarCall.of(handle).compute(arguments)
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

    arguments = _argument_columns(handle, PythonAggregateUdfHandle, batch, arg_columns, output_column)
    result = AggregateCall.of(handle).compute(arguments)
    return pa.RecordBatch.from_arrays([result], [output_column])


def _argument_columns(
    handle: UdfHandle, declared_as: type, batch: pa.RecordBatch, names: Sequence[str], output: str
) -> list[pa.Array]:
    import pyarrow as pa

    where = caller_location()
    if not isinstance(handle, declared_as):
        decorator = "udaf" if declared_as is PythonAggregateUdfHandle else "udf"
        raise DeclarationError(
            f"the first argument is a function of @{decorator}, not {handle!r}", where=where
        )
    if not isinstance(batch, pa.RecordBatch):
        raise DeclarationError(f"the batch is a pyarrow RecordBatch, not {batch!r}", where=where)
    if isinstance(names, str) or not isinstance(names, Sequence):
        raise DeclarationError(f"arg_columns= lists names of columns, not {names!r}", where=where)
    if not isinstance(output, str):
        raise DeclarationError(f"output_column= is the name of a column, not {output!r}", where=where)
    if len(names) != len(handle.args):
        raise DeclarationError(
            f"the function {handle.name!r} takes {len(handle.args)} arguments, not {len(names)}", where=where
        )
    missing = [name for name in names if name not in batch.schema.names]
    if missing:
        raise DeclarationError(f"the batch has no column {missing[0]!r}", where=where)
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
