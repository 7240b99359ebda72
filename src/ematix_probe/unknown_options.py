"""Refuses an option that a function does not have, and suggests the one that was probably meant."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import ParamSpec, TypeVar

from ematix_probe.errors import DeclarationError
from ematix_probe.location import caller_location
from ematix_probe.suggestions import did_you_mean

P = ParamSpec("P")
R = TypeVar("R")


def refuse_unknown_options(
    shown: str, more: Iterable[str] = ()
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """The function, with a DeclarationError for what its signature does not take.

    ``shown`` is how users write the call, ``more`` the names that its ``**options`` take.
    """
    others = tuple(more)

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)
        variable = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
        named = [name for name, each in signature.parameters.items() if each.kind not in variable]

        @functools.wraps(function)
        def checked(*args: P.args, **given: P.kwargs) -> R:
            known = [*named, *others]
            for name in given:
                if name not in known:
                    raise DeclarationError(
                        f"{shown} takes no {name}={did_you_mean(name, known)}",
                        where=caller_location(),
                        next_step=f"it takes {', '.join(f'{each}=' for each in known)}",
                    )
            try:
                signature.bind(*args, **given)
            except TypeError as error:
                raise DeclarationError(
                    f"{shown}: {error}",
                    where=caller_location(),
                    next_step=f"it takes {', '.join(f'{each}=' for each in known)}",
                ) from None
            return function(*args, **given)

        return checked

    return decorate
