"""The documented place of `RunHistory`."""

from __future__ import annotations

from ematix_probe.history.store import RunHistory as RunHistory

__all__ = ["RunHistory"]
