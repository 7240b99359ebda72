"""The options of a stream's source: checks their names and parses their text values.

A name may be written in snake case or as the system itself writes it: ``max_files_per_trigger`` and
``maxFilesPerTrigger`` are the same option.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from ematix_flow.errors import DeclarationError, did_you_mean

_FLAGS = {"true": True, "false": False, "yes": True, "no": False, "1": True, "0": False}


def known_options(given: Mapping[str, str], known: Collection[str]) -> dict[str, str]:
    """The given options by their names in ``known``; DeclarationError for an unknown or repeated one."""
    names = {_fold_name(name): name for name in known}
    found: dict[str, str] = {}
    for key, value in given.items():
        name = names.get(_fold_name(key))
        if name is None:
            raise DeclarationError(f"this source has no option {key!r}.{did_you_mean(key, known)}")
        if name in found:
            raise DeclarationError(f"the option {name!r} is given twice, once as {key!r}")
        found[name] = str(value)
    return found


def _fold_name(name: str) -> str:
    return name.replace("_", "").lower()


def bool_option(options: Mapping[str, str], name: str, default: bool = False) -> bool:
    given = options.get(name)
    if given is None:
        return default
    found = _FLAGS.get(given.strip().lower())
    if found is None:
        raise DeclarationError(f"the option {name!r} must be true or false, not {given!r}")
    return found


def seconds_option(options: Mapping[str, str], name: str, default: float) -> float:
    given = options.get(name)
    if given is None:
        return default
    try:
        found = float(given)
    except ValueError:
        found = math.nan
    if not (found >= 0 and math.isfinite(found)):
        raise DeclarationError(f"the option {name!r} must be a number of seconds, 0 or more, not {given!r}")
    return found


def count_option(options: Mapping[str, str], name: str, default: int) -> int:
    given = options.get(name)
    if given is None:
        return default
    if not (given.isascii() and given.strip().isdigit() and int(given) > 0):
        raise DeclarationError(f"the option {name!r} must be a whole number, 1 or more, not {given!r}")
    return int(given)
