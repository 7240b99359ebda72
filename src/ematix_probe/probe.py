"""The namespace of decorators: ``@probe.data(…)`` for data, ``@probe.load(…)`` for load."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ematix_probe.declaration import data

if TYPE_CHECKING:
    from ematix_probe.load.declaration import load

__all__ = ["data", "load"]


def __getattr__(name: str) -> Any:
    if name == "load":
        from ematix_probe.load.declaration import load

        return load
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
