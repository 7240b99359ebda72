"""Turns Python's errors about wrong names and arguments of this package into declaration errors.

``Target(tabel=…)``, ``pk(x=1)`` and ``ematix.pipline`` fail before any code of this package runs: Python
raises a TypeError or an AttributeError in the user's file. Errors of the user's own functions are unchanged.
"""

from __future__ import annotations

import inspect
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from types import FrameType, ModuleType
from typing import Any

from ematix_flow.errors import DeclarationError, did_you_mean
from ematix_flow.spec.location import SourceLocation, is_package_frame

_PACKAGE = __name__.partition(".")[0]
# "Target.__init__() got an unexpected keyword argument 'tabel'", "pk() takes 0 positional arguments but …"
_CALL_ERROR = re.compile(r"(?P<called>[\w.<>]+)\(\) (?P<complaint>.+)", re.DOTALL)
_UNKNOWN_OPTION = re.compile(r"got an unexpected keyword argument '(?P<option>\w+)'")
_UNKNOWN_IMPORT = re.compile(r"cannot import name '(?P<name>\w+)' from '(?P<module>[\w.]+)'")


def as_declaration_error(error: BaseException) -> DeclarationError | None:
    """The error for a wrong call or name of this package; None when the error has another cause."""
    frames = list(traceback.walk_tb(error.__traceback__))
    users = [(frame, line) for frame, line in frames if not is_package_frame(frame)]
    if not users:
        return None
    frame, line = users[-1]
    where = SourceLocation(frame.f_code.co_filename, line)
    if isinstance(error, TypeError) and frame is frames[-1][0]:
        return _find_argument_error(error, frame, where)
    if isinstance(error, AttributeError) and _is_from_package(error.obj):
        return _unknown_attribute_error(error.obj, str(error.name), where)
    if isinstance(error, ImportError):
        return _unknown_import_error(error, where)
    return None


def argument_error(
    shown: str, called: Callable[..., Any], complaint: str, where: SourceLocation | None
) -> DeclarationError:
    """The error about the arguments of a call, with a suggestion."""
    unknown = _UNKNOWN_OPTION.search(complaint)
    if unknown is None:
        return DeclarationError(f"{shown}() {complaint}", where=where)
    parameters = inspect.signature(called).parameters.values()
    named = [each.name for each in parameters if each.kind is not each.VAR_POSITIONAL]
    known = did_you_mean(unknown["option"], named) or " It takes no option by name."
    return DeclarationError(f"{shown} has no option {unknown['option']!r}.{known}", where=where)


def _find_argument_error(
    error: TypeError, frame: FrameType, where: SourceLocation | None
) -> DeclarationError | None:
    found = _CALL_ERROR.fullmatch(str(error))
    if found is None:
        return None
    wanted = found["called"].removesuffix(".__init__").removesuffix(".__new__")
    for called in _callables(frame):
        if getattr(called, "__qualname__", None) == wanted:
            if not _is_from_package(called):  # the user's own, of the same name
                return None
            return argument_error(wanted, called, found["complaint"], where)
    return None


def _callables(frame: FrameType) -> Iterator[Any]:
    """What the line can call: the names in its scope, and the attributes of those from this package."""
    scope = {**frame.f_globals, **frame.f_locals}
    yield from scope.values()
    for value in scope.values():
        if _is_from_package(value):
            for name in dir(value):
                if not name.startswith("_"):
                    yield getattr(value, name, None)


def _is_from_package(value: Any) -> bool:
    home = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
    return isinstance(home, str) and home.partition(".")[0] == _PACKAGE


def _unknown_attribute_error(holder: Any, name: str, where: SourceLocation | None) -> DeclarationError:
    known = [each for each in dir(holder) if not each.startswith("_")]
    shown = holder.__name__ if isinstance(holder, (ModuleType, type)) else type(holder).__name__.lower()
    return DeclarationError(f"{shown} has no {name!r}.{did_you_mean(name, known)}", where=where)


def _unknown_import_error(error: ImportError, where: SourceLocation | None) -> DeclarationError | None:
    found = _UNKNOWN_IMPORT.match(str(error))
    if found is None or found["module"].partition(".")[0] != _PACKAGE:
        return None
    module = sys.modules.get(found["module"])
    known = getattr(module, "__all__", ())
    return DeclarationError(
        f"{found['module']} has no {found['name']!r}.{did_you_mean(found['name'], known)}", where=where
    )
