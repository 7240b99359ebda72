"""Checks the Python functions of a stream: what ``udfs=`` and ``aggregate_udfs=`` list."""

from __future__ import annotations

from collections.abc import Sequence

from ematix_flow.api.stream_declaration import StreamOptions
from ematix_flow.errors import DeclarationError
from ematix_flow.spec.location import SourceLocation
from ematix_flow.spec.udfs import (
    PythonAggregateUdfHandle,
    PythonScalarUdfHandle,
    UdfHandle,
    refuse_duplicate_functions,
)


def build_functions(options: StreamOptions, where: SourceLocation | None) -> tuple[UdfHandle, ...]:
    """The functions of ``udfs=`` and ``aggregate_udfs=``, checked. No two have the same name."""
    functions: list[UdfHandle] = []
    for option, kind, decorator in (
        ("udfs", PythonScalarUdfHandle, "@udf"),
        ("aggregate_udfs", PythonAggregateUdfHandle, "@udaf"),
    ):
        given = getattr(options, option)
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
        if given and not (options.transform_sql or "").strip():
            raise DeclarationError(f"{option}= works with transform_sql=, which is not set", where=where)
        functions += given
    refuse_duplicate_functions(functions, where)
    return tuple(functions)
