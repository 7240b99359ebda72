"""Declared Python functions that SQL calls by name."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ematix_flow.errors import DeclarationError, DuplicateName
from ematix_flow.spec.declared_fields import check_location
from ematix_flow.spec.location import SourceLocation
from ematix_flow.spec.udf_types import UdfType

ACCUMULATOR_METHODS = ("update_batch", "merge_batch", "evaluate", "state")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# words of SQL that stand before a parenthesis and are not functions of Spark
_SQL_WORDS = frozenset(
    {
        *(
            "all",
            "and",
            "as",
            "between",
            "by",
            "case",
            "cast",
            "distinct",
            "else",
            "except",
            "extract",
            "from",
        ),
        *("group", "having", "in", "intersect", "interval", "join", "lateral", "like", "limit", "not", "on"),
        *("or", "order", "over", "partition", "pivot", "select", "set", "table", "then", "union", "using"),
        *("values", "when", "where", "with", "within"),
    }
)


@dataclass(frozen=True)
class PythonScalarUdfHandle:
    """A function of Arrow arrays. SQL calls it by ``name``; calling it from Python runs the function."""

    name: str
    args: tuple[UdfType, ...]
    returns: UdfType
    function: Callable[..., Any]
    where: SourceLocation | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        check_location(self.where)
        if not callable(self.function) or isinstance(self.function, type):
            raise DeclarationError(f"@udf decorates a function, not {self.function!r}", where=self.where)
        _check_name(self.name, self.where)
        _check_types(self.name, {"args": self.args, "returns": (self.returns,)}, self.where)

    @property
    def signature(self) -> str:
        return _signature(self.name, self.args, self.returns)

    def __call__(self, *arrays: Any) -> Any:
        return self.function(*arrays)


@dataclass(frozen=True)
class PythonAggregateUdfHandle:
    """An accumulator class. SQL calls it by ``name``; calling it from Python makes an accumulator."""

    name: str
    args: tuple[UdfType, ...]
    state: tuple[UdfType, ...]
    returns: UdfType
    accumulator: type[Any]
    where: SourceLocation | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        check_location(self.where)
        if not isinstance(self.accumulator, type):
            raise DeclarationError(f"@udaf decorates a class, not {self.accumulator!r}", where=self.where)
        _check_name(self.name, self.where)
        types = {"args": self.args, "state": self.state, "returns": (self.returns,)}
        _check_types(self.name, types, self.where)
        missing = [m for m in ACCUMULATOR_METHODS if not callable(getattr(self.accumulator, m, None))]
        if missing:
            raise DeclarationError(
                f"the aggregate function {self.name!r} has no method {missing[0]}()",
                where=self.where,
                next_step=f"its class defines {', '.join(f'{m}()' for m in ACCUMULATOR_METHODS)}",
            )

    @property
    def signature(self) -> str:
        return _signature(self.name, self.args, self.returns)

    def __call__(self) -> Any:
        return self.accumulator()


UdfHandle: TypeAlias = PythonScalarUdfHandle | PythonAggregateUdfHandle


def function_reference(function: UdfHandle) -> str:
    """Where it is declared, as in ``pipelines:vwap``. Raises DeclarationError if it cannot be imported."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if not module or not name or "<locals>" in name:
        raise DeclarationError(
            f"the function {function.name!r} is declared inside another function",
            where=function.where,
            next_step="declare it at the top level of a module, so that a file can refer to it",
        )
    return f"{module}:{name}"


def load_function(reference: object, where: SourceLocation | None = None) -> UdfHandle:
    """The function that ``module:name`` refers to. Raises DeclarationError if there is none."""
    module, colon, name = reference.partition(":") if isinstance(reference, str) else ("", "", "")
    if not (module and colon and name):
        raise DeclarationError(
            f"a function is given as module:name, not {reference!r}",
            where=where,
            next_step='write it as in  udfs = ["my_functions:vwap"]',
        )
    try:
        found = getattr(importlib.import_module(module), name, None)
    except ModuleNotFoundError as error:
        raise DeclarationError(
            f"there is no module {error.name!r} for {reference!r}",
            where=where,
            next_step="put it into the working folder or next to the file that refers to it",
        ) from None
    if not isinstance(found, (PythonScalarUdfHandle, PythonAggregateUdfHandle)):
        raise DeclarationError(f"{reference!r} is not a function that @udf or @udaf declares", where=where)
    return found


def refuse_duplicate_functions(functions: Sequence[UdfHandle], where: SourceLocation | None) -> None:
    """Refuse two functions of one name. SQL does not tell upper from lower case in names of functions."""
    seen: dict[str, UdfHandle] = {}
    for function in functions:
        other = seen.setdefault(function.name.lower(), function)
        if other is not function:
            raise DuplicateName(
                f"two functions are called {function.name!r}",
                where=function.where or where,
                next_step="give one of them another name=",
            )


def _signature(name: str, args: Sequence[UdfType], returns: UdfType) -> str:
    """As in ``vwap(Float64, Float64) -> Float64``."""
    return f"{name}({', '.join(map(str, args))}) -> {returns}"


def _check_name(name: object, where: SourceLocation | None) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise DeclarationError(
            f"the name of a function in SQL has letters, digits and underscores, not {name!r}", where=where
        )
    if name.lower() in _SQL_WORDS:
        raise DeclarationError(
            f"a function cannot be called {name!r}, which is a word of SQL",
            where=where,
            next_step="give it another name=",
        )


def _check_types(name: str, options: Mapping[str, object], where: SourceLocation | None) -> None:
    for option, types in options.items():
        if not isinstance(types, tuple) or not types or not all(isinstance(t, UdfType) for t in types):
            raise DeclarationError(
                f"{option} of the function {name!r} must be of UdfType, not {types!r}",
                where=where,
                next_step="declare the function with @udf or @udaf, which take the names of types",
            )
