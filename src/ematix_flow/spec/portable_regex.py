"""The portable regular expressions of `ematix_probe.portable_regex`; refusals are DeclarationErrors here."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from ematix_flow.errors import DeclarationError
from ematix_probe import portable_regex
from ematix_probe.portable_regex import FLAVOURS, PatternError, write_replacement

__all__ = [
    "FLAVOURS",
    "check_pattern",
    "check_replacement",
    "matches_empty_after_start",
    "matches_empty_text",
    "replacement_parts",
    "translate",
    "write_replacement",
]

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def _refusing(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    @wraps(function)
    def call(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        try:
            return function(*args, **kwargs)
        except PatternError as error:
            raise DeclarationError(error.what, next_step=error.next_step) from None

    return call


check_pattern = _refusing(portable_regex.check_pattern)
check_replacement = _refusing(portable_regex.check_replacement)
matches_empty_after_start = _refusing(portable_regex.matches_empty_after_start)
matches_empty_text = _refusing(portable_regex.matches_empty_text)
replacement_parts = _refusing(portable_regex.replacement_parts)
translate = _refusing(portable_regex.translate)
