"""``ematix``: the one name under which all decorators are found."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

from ematix_flow.api.connection import connection
from ematix_flow.api.options import TransformRef
from ematix_flow.api.pipeline import pipeline
from ematix_flow.api.streaming import streaming_pipeline
from ematix_flow.api.tables import table
from ematix_flow.api.target import target
from ematix_flow.api.workflow import transform, workflow
from ematix_flow.graph.wrong_calls import refused_arguments
from ematix_flow.spec.location import caller_location

P = ParamSpec("P")
R = TypeVar("R")


def _checked(declare: Callable[P, R]) -> Callable[P, R]:
    """The same; an option that it does not have is an error with the place, and with what was meant."""

    @functools.wraps(declare)
    def called(*args: P.args, **options: P.kwargs) -> R:
        try:
            return declare(*args, **options)
        except TypeError:
            _refuse_arguments(declare, args, options)
            raise

    return called


def _refuse_arguments(declare: Callable[..., Any], args: Sequence[Any], options: Mapping[str, Any]) -> None:
    """DeclarationError if it cannot be called so. Asked when a call failed: it takes longer than the call."""
    try:
        inspect.signature(declare).bind(*args, **options)
    except TypeError as error:
        shown = f"ematix.{declare.__name__}"
        raise refused_arguments(shown, declare, str(error), caller_location()) from None


class Ematix:
    """The decorators. There is one instance, ``ematix``."""

    connection = staticmethod(connection)
    table = staticmethod(table)
    pipeline = staticmethod(_checked(pipeline))
    job = pipeline
    streaming_pipeline = staticmethod(_checked(streaming_pipeline))
    target = staticmethod(_checked(target))
    workflow = staticmethod(_checked(workflow))
    transform = staticmethod(_checked(transform))
    transform_ref = staticmethod(TransformRef)

    def __repr__(self) -> str:
        names = sorted(name for name in vars(type(self)) if not name.startswith("_"))
        return f"<ematix: {', '.join(names)}>"


ematix = Ematix()
