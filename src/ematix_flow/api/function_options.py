"""Checks the Python functions of a pipeline or a stream: what ``udfs=`` and ``aggregate_udfs=`` list."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ematix_flow.errors import DeclarationError
from ematix_flow.spec.location import SourceLocation
from ematix_flow.spec.udfs import (
    PythonAggregateUdfHandle,
    PythonScalarUdfHandle,
    UdfHandle,
    refuse_duplicate_functions,
)


def build_functions(
    udfs: Any, aggregate_udfs: Any, missing_sql: str | None, where: SourceLocation | None
) -> tuple[UdfHandle, ...]:
    """The listed functions, checked. No two have the same name.

    ``missing_sql`` says why there is no SQL that could call them; None if there is.
    """
    functions: list[UdfHandle] = []
    for option, given, kind, decorator in (
        ("udfs", udfs, PythonScalarUdfHandle, "@udf"),
        ("aggregate_udfs", aggregate_udfs, PythonAggregateUdfHandle, "@udaf"),
    ):
        if given is None:
            continue
        if isinstance(given, str) or not isinstance(given, Sequence):
            raise DeclarationError(f"{option}= takes a list of functions, not {given!r}", where=where)
        wrong = [each for each in given if not isinstance(each, kind)]
        if wrong:
            raise DeclarationError(
                f"{option}= takes what {decorator} declares, not {wrong[0]!r}",
                where=where,
                next_step=f"decorate it with  {decorator}(args=…, returns=…)",
            )
        if given and missing_sql is not None:
            raise DeclarationError(f"{option}= {missing_sql}", where=where)
        functions += given
    refuse_duplicate_functions(functions, where)
    return tuple(functions)
