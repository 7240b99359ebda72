"""``ematix``: the namespace of all decorators."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

from ematix_flow.api import expectations
from ematix_flow.api.connection import connection
from ematix_flow.api.option_checks import TransformRef
from ematix_flow.api.pipeline import pipeline
from ematix_flow.api.streaming import streaming_pipeline
from ematix_flow.api.tables import table
from ematix_flow.api.target import target
from ematix_flow.api.workflow import transform, workflow
from ematix_flow.graph.call_errors import argument_error
from ematix_flow.spec.expectations import DEAD_LETTERS
from ematix_flow.spec.location import caller_location

P = ParamSpec("P")
R = TypeVar("R")


def _with_argument_errors(declare: Callable[P, R]) -> Callable[P, R]:
    """Wrap a decorator: an unknown option is an error with the user's line and a suggestion."""

    @functools.wraps(declare)
    def called(*args: P.args, **options: P.kwargs) -> R:
        try:
            return declare(*args, **options)
        except TypeError:
            _raise_argument_error(declare, args, options)
            raise

    return called


def _raise_argument_error(
    declare: Callable[..., Any], args: Sequence[Any], options: Mapping[str, Any]
) -> None:
    """Raise DeclarationError if the arguments do not fit. Called after a failure only, because it is slow."""
    try:
        inspect.signature(declare).bind(*args, **options)
    except TypeError as error:
        shown = f"ematix.{declare.__name__}"
        raise argument_error(shown, declare, str(error), caller_location()) from None


class Ematix:
    """The decorators. There is one instance, ``ematix``."""

    connection = staticmethod(connection)
    table = staticmethod(table)
    pipeline = staticmethod(_with_argument_errors(pipeline))
    job = pipeline
    streaming_pipeline = staticmethod(_with_argument_errors(streaming_pipeline))
    target = staticmethod(_with_argument_errors(target))
    workflow = staticmethod(_with_argument_errors(workflow))
    transform = staticmethod(_with_argument_errors(transform))
    transform_ref = staticmethod(TransformRef)
    DEAD_LETTERS = DEAD_LETTERS
    expect = staticmethod(expectations.expect)
    expect_or_drop = staticmethod(expectations.expect_or_drop)
    expect_or_fail = staticmethod(expectations.expect_or_fail)
    expect_all = staticmethod(expectations.expect_all)
    expect_all_or_drop = staticmethod(expectations.expect_all_or_drop)
    expect_all_or_fail = staticmethod(expectations.expect_all_or_fail)

    def __repr__(self) -> str:
        names = sorted(name for name in vars(type(self)) if not name.startswith("_"))
        return f"<ematix: {', '.join(names)}>"


ematix = Ematix()
