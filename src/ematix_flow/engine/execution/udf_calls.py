"""Calls of a user's Python functions inside Spark's workers: types are converted, results are checked."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ematix_flow.backends.arrow.exact_casts import cast_exactly
from ematix_flow.errors import LoadError
from ematix_flow.spec.location import is_package_file
from ematix_flow.spec.udf_types import UdfType
from ematix_flow.spec.udfs import PythonAggregateUdfHandle, PythonScalarUdfHandle

if TYPE_CHECKING:
    import pyarrow as pa

_ROWS_PER_UPDATE = 65_536  # of one group, so that an accumulator works on pieces


@dataclass(frozen=True)
class ScalarCall:
    """A function as Spark calls it: arrays of Spark's types in, an array of the same length out."""

    name: str
    function: Callable[..., Any]
    args: tuple[UdfType, ...]
    returns: UdfType

    @classmethod
    def of(cls, udf: PythonScalarUdfHandle) -> ScalarCall:
        return cls(udf.name, udf.function, udf.args, udf.returns)

    def __call__(self, *columns: pa.Array) -> pa.Array:
        return _cast(self.compute(columns), self.returns.spark_arrow())

    def compute(self, columns: Sequence[pa.Array]) -> pa.Array:
        """The result in the declared type. The function is not called without rows."""
        import pyarrow as pa

        arrays = _declared_arrays(self.name, columns, self.args)
        if not len(arrays[0]):  # np.vectorize and others refuse empty arrays
            return pa.array([], self.returns.arrow())
        result = _call_user_code(self.name, self.function, arrays)
        return _checked_array(self.name, result, self.returns, len(arrays[0]))


@dataclass(frozen=True)
class AggregateCall:
    """An aggregate as Spark calls it: for each group a list of structs of arguments in, one value out."""

    name: str
    accumulator: type[Any]
    args: tuple[UdfType, ...]
    returns: UdfType

    @classmethod
    def of(cls, udaf: PythonAggregateUdfHandle) -> AggregateCall:
        return cls(udaf.name, udaf.accumulator, udaf.args, udaf.returns)

    def __call__(self, groups: pa.Array) -> pa.Array:
        import pyarrow as pa

        results = [self.compute(group.values.flatten()) for group in groups]
        empty = pa.array([], self.returns.arrow())
        return _cast(pa.concat_arrays([empty, *results]), self.returns.spark_arrow())

    def compute(self, columns: Sequence[pa.Array]) -> pa.Array:
        """The result of one group, an array with one value of the declared type."""
        state = _call_user_code(self.name, self.accumulator, ())
        arrays = _declared_arrays(self.name, columns, self.args)
        for start in range(0, len(arrays[0]), _ROWS_PER_UPDATE):
            piece = [array.slice(start, _ROWS_PER_UPDATE) for array in arrays]
            _call_user_code(self.name, state.update_batch, piece)
        return _checked_array(self.name, _call_user_code(self.name, state.evaluate, ()), self.returns, 1)


def _declared_arrays(name: str, columns: Sequence[pa.Array], args: Sequence[UdfType]) -> list[pa.Array]:
    """The arrays in the declared types. Spark has converted the values to its nearest types before."""
    import pyarrow as pa

    arrays = []
    for number, (column, declared) in enumerate(zip(columns, args, strict=True), 1):
        try:
            arrays.append(_cast(column, declared.arrow()))
        except pa.ArrowException as error:
            raise LoadError(
                f"argument {number} of the function {name!r} is declared as {declared}: {error}"
            ) from error
    return arrays


def _cast(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    return array if array.type == wanted else cast_exactly(array, wanted)


def _call_user_code(name: str, function: Callable[..., Any], arrays: Sequence[pa.Array]) -> Any:
    try:
        return function(*arrays)
    except Exception as error:
        raise LoadError(
            f"the function {name!r} failed: {type(error).__name__}: {error}{_user_line(error)}"
        ) from error


def _user_line(error: BaseException) -> str:
    """The line of the user's code that raised, as in ``, at pipelines.py:12: return a / b``."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not is_package_file(f.filename)]
    own = [frame for frame in frames if "site-packages" not in frame.filename]
    if not frames:
        return ""
    frame = (own or frames)[-1]
    return f", at {frame.filename}:{frame.lineno}" + (f": {frame.line}" if frame.line else "")


def _checked_array(name: str, result: Any, returns: UdfType, length: int) -> pa.Array:
    """The result as an array of the declared type and length. Raises LoadError for anything else."""
    import pyarrow as pa

    if isinstance(result, pa.ChunkedArray):
        result = result.combine_chunks()
    if isinstance(result, pa.Scalar):
        result = pa.array([result.as_py()], result.type)
    if not isinstance(result, pa.Array):
        raise LoadError(
            f"the function {name!r} must return a pyarrow Array, and it returned {type(result).__name__}",
            next_step="return  pa.array(values, type=…)",
        )
    if len(result) != length:
        expected = "an array with one value" if length == 1 else f"{length:,} values, one for each row"
        raise LoadError(f"the function {name!r} must return {expected}, and it returned {len(result):,}")
    try:
        return _cast(result, returns.arrow())
    except pa.ArrowException as error:
        raise LoadError(
            f"the function {name!r} declares returns={str(returns)!r}, and it returned {result.type}: {error}"
        ) from error
