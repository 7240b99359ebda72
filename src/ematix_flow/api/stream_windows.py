"""Checks ``window=``, ``watermark=`` and ``state_store=`` of a stream against its other options."""

from __future__ import annotations

import warnings

from ematix_flow.errors import DeclarationError
from ematix_flow.spec.streams import StreamSpec
from ematix_flow.spec.windows import StateStore, Watermark, Window


def check_window(spec: StreamSpec) -> None:
    """Raises DeclarationError for options that do not fit together."""
    for option, kind in (("window", Window), ("watermark", Watermark), ("state_store", StateStore)):
        given = getattr(spec, option)
        if given is not None and not isinstance(given, kind):
            raise DeclarationError(f"{option}= takes {kind.__name__}(…), not {given!r}", where=spec.where)
    if not spec.is_stateful:
        for option in ("watermark", "state_store"):
            if getattr(spec, option) is not None:
                raise DeclarationError(
                    f"{option}= works with window= or join=, which are not set", where=spec.where
                )
        return
    if spec.window is not None:
        _check_limits(spec)
    if spec.state_store is not None and spec.state_store.kind == "in_memory":
        kept = (
            "its windows in memory: a restart loses the open ones"
            if spec.window is not None
            else "its rows in memory: a restart loses those that wait for a partner"
        )
        warnings.warn(f"stream {spec.name!r} keeps {kept}", stacklevel=2)


def _check_limits(spec: StreamSpec) -> None:
    assert spec.window is not None
    if spec.window.late_data == "dlq" and spec.on_error != "dlq":
        raise DeclarationError(
            "late_data='dlq' stores late rows as dead letters, and the stream has no dead letters",
            where=spec.where,
            next_step='set  transform_on_error="dlq"',
        )
    for target in spec.targets:
        missing = [key for key in spec.window.keys if key not in target.keys]
        if target.mode == "merge" and missing:
            raise DeclarationError(
                f"keys= of {target.label} lacks {missing[0]!r}: several rows of the window have the same key",
                where=spec.where,
                next_step=f"write  keys={list(spec.window.keys)!r}",
            )
        fixed = (*spec.window.keys, *spec.window.group_by)
        moving = [key for key in target.keys if spec.window.is_session and key not in fixed]
        if moving:
            raise DeclarationError(
                f"keys= of {target.label} has {moving[0]!r}, which changes while a session grows",
                where=spec.where,
                next_step=f"write  keys={list(spec.window.keys)!r}",
            )
        if target.mode == "scd2":
            raise DeclarationError(
                "mode='scd2' keeps versions of rows, and a window yields aggregates",
                where=spec.where,
                next_step='use mode="merge" with the keys of the window, or mode="append"',
            )
