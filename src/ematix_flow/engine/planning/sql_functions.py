"""Makes a user's Python functions callable by name in Spark's SQL.

A call in the SQL is rewritten: Spark casts the arguments to the declared types and passes them to an Arrow
UDF. An aggregate collects the arguments of a group into a list, which its Arrow UDF reduces, because Spark
does not mix its Python aggregates with others in one query.
"""

from __future__ import annotations

import itertools
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from ematix_flow.engine.execution.udf_calls import AggregateCall, ScalarCall
from ematix_flow.errors import DeclarationError, SchemaMismatch
from ematix_flow.spec.generated_names import internal_name
from ematix_flow.spec.udf_types import UdfType
from ematix_flow.spec.udfs import PythonScalarUdfHandle, UdfHandle

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from sqlglot.tokenizer_core import Token

_DEPTH = {"(": 1, "[": 1, ")": -1, "]": -1}
_numbers: WeakKeyDictionary[UdfHandle, int] = WeakKeyDictionary()
_numbers_lock, _next_number = threading.Lock(), itertools.count()


def register_functions(spark: SparkSession, functions: Sequence[UdfHandle]) -> None:
    """Register the functions in a session, once. Raises DeclarationError for the name of a Spark function."""
    for function in functions:
        name = _registered_name(function)
        if spark.catalog.functionExists(name):
            continue
        if spark.catalog.functionExists(function.name):
            raise DeclarationError(
                f"Spark has a function {function.name!r} already",
                where=function.where,
                next_step="give yours another name=",
            )
        if isinstance(function, PythonScalarUdfHandle):
            _register_arrow_udf(spark, name, ScalarCall.of(function), function.returns)
        else:
            _register_arrow_udf(spark, name, AggregateCall.of(function), function.returns)


def _register_arrow_udf(spark: SparkSession, name: str, call: Callable[..., Any], returns: UdfType) -> None:
    from pyspark.sql.pandas.functions import ArrowUDFType, arrow_udf

    with warnings.catch_warnings():  # PySpark prefers type hints, which a call with any arguments lacks
        warnings.filterwarnings("ignore", "It is preferred to specify type hints", UserWarning)
        spark.udf.register(name, arrow_udf(call, returns.spark, ArrowUDFType.SCALAR))


def _registered_name(function: UdfHandle) -> str:
    """Its name in Spark: two pipelines of one session may call different functions by the same name."""
    with _numbers_lock:
        if function not in _numbers:
            _numbers[function] = next(_next_number)
        return internal_name(f"udf_{function.name}_{_numbers[function]}")


# ------------------------------------------------------------------ calls in SQL


def rewrite_calls(sql: str, functions: Sequence[UdfHandle]) -> str:
    """Rewrite the calls of these functions for Spark, with casts of their arguments.

    Works on the tokens, so that the rest of the SQL stays as it is. ``DISTINCT``, ``FILTER (…)`` and
    ``OVER (…)`` of an aggregate apply to the collection of its arguments.
    """
    if not functions:
        return sql
    import sqlglot

    tokens = sqlglot.tokenize(sql, read="spark")
    rewriter = _CallRewriter(sql, tokens, {function.name.lower(): function for function in functions})
    if not tokens:
        return sql
    body = rewriter.rewrite(0, len(tokens))
    return sql[: tokens[0].start] + body + sql[tokens[-1].end + 1 :]


class _CallRewriter:
    def __init__(self, sql: str, tokens: Sequence[Token], functions: Mapping[str, UdfHandle]) -> None:
        self.sql, self.tokens, self.functions = sql, tokens, functions

    def rewrite(self, first: int, end: int) -> str:
        """The text of the tokens from ``first`` up to ``end``, with its calls rewritten."""
        tokens, text, position, number = self.tokens, "", self.tokens[first].start, first
        while number < end:
            function = self._called(number, end)
            if function is not None:
                text += self.sql[position : tokens[number].start]
                call, number = self._rewrite_call(function, number, end)
                text += call
                position = tokens[number].end + 1
            number += 1
        return text + self.sql[position : tokens[end - 1].end + 1]

    def _called(self, number: int, end: int) -> UdfHandle | None:
        """The function whose call begins at this token.

        A name after a dot belongs to another, and one after AS or WITH is the name of a table.
        """
        is_call = number + 1 < end and self.tokens[number + 1].text == "("
        before = self.tokens[number - 1].text.upper() if number else ""
        if not is_call or before in (".", "AS", "WITH"):
            return None
        return self.functions.get(self.tokens[number].text.lower())

    def _rewrite_call(self, function: UdfHandle, number: int, end: int) -> tuple[str, int]:
        """The rewritten call that begins at this token, and the number of its last token."""
        closing = self._closing(number + 1, end)
        first, name = number + 2, _registered_name(function)
        if isinstance(function, PythonScalarUdfHandle):
            return f"{name}({', '.join(self._casts(function, first, closing))})", closing
        is_distinct = self.tokens[first].text.upper() == "DISTINCT"
        casts = self._casts(function, first + is_distinct, closing)
        fields = ", ".join(f"'a{place}', {cast}" for place, cast in enumerate(casts))
        collect = "collect_set" if is_distinct else "collect_list"
        last = self._end_of_clauses(closing, end)
        clauses = " " + self.rewrite(closing + 1, last + 1) if last > closing else ""
        return f"{name}({collect}(named_struct({fields})){clauses})", last

    def _casts(self, function: UdfHandle, first: int, closing: int) -> list[str]:
        """The arguments, each with a cast to its declared type."""
        given = [self.rewrite(start, end) for start, end in self._arguments(first, closing)]
        if len(given) != len(function.args):
            plural = "" if len(function.args) == 1 else "s"
            raise SchemaMismatch(
                f"the function {function.name!r} takes {len(function.args)} argument{plural}, and the SQL "
                f"gives {len(given)}",
                next_step="correct the call in the SQL",
            )
        return [_cast(text, declared) for text, declared in zip(given, function.args, strict=True)]

    def _arguments(self, first: int, closing: int) -> Iterator[tuple[int, int]]:
        """The first token of each argument, and the one after its last."""
        depth, start = 0, first
        for number in range(first, closing):
            depth += _DEPTH.get(self.tokens[number].text, 0)
            if depth == 0 and self.tokens[number].text == ",":
                yield start, number
                start = number + 1
        if first < closing:
            yield start, closing

    def _closing(self, opening: int, end: int) -> int:
        """The parenthesis that closes this one."""
        depth = 0
        for number in range(opening, end):
            depth += _DEPTH.get(self.tokens[number].text, 0)
            if depth == 0:
                return number
        raise SchemaMismatch("a parenthesis is not closed", next_step="correct the SQL")

    def _end_of_clauses(self, closing: int, end: int) -> int:
        """The last token of a call with its ``FILTER (…)`` and ``OVER (…)``."""
        while (
            closing + 2 < end
            and self.tokens[closing + 1].text.upper() in ("FILTER", "OVER")
            and self.tokens[closing + 2].text == "("
        ):
            closing = self._closing(closing + 2, end)
        return closing


def _cast(text: str, declared: UdfType) -> str:
    """SQL that casts an argument. A plain cast would cut the fraction off for an integer without an error."""
    whole = f"({text}) | 0" if declared.is_small_integer else text  # Spark refuses | for a fraction
    return f"CAST({whole} AS {declared.spark})"
