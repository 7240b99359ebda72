"""Turns what ``run(history=…)`` is given into a history, and finds that of the environment."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, cast

from ematix_probe.errors import DeclarationError, ProbeError
from ematix_probe.location import caller_location

if TYPE_CHECKING:
    from ematix_probe.history.store import RunHistory

VARIABLE = "EMATIX_PROBE_HISTORY"


def history_of(given: Any) -> RunHistory | None:
    """The history itself, or that at a path or URL; DeclarationError for anything else."""
    if given is None or (hasattr(given, "record") and hasattr(given, "past")):
        return cast("RunHistory | None", given)
    if isinstance(given, (str, os.PathLike)):
        from ematix_probe.history.store import RunHistory

        return RunHistory(given)
    raise DeclarationError(
        f"history= takes a RunHistory, or the path or URL of one, not {type(given).__name__}",
        where=caller_location(),
        next_step='write  run(history="history.db")',
    )


def prepare_history(history: Any) -> None:
    """Refuse, before a probe runs, a history that could not record the run. Others than ours may not tell."""
    prepare = getattr(history, "prepare", None)
    if prepare is None:
        return
    try:
        prepare()
    except ProbeError as error:
        error.state = error.state or "the probe was not run"
        raise


def history_of_environment() -> RunHistory | None:
    """The history that ``EMATIX_PROBE_HISTORY`` names; None without it."""
    return history_of(os.environ.get(VARIABLE) or None)
