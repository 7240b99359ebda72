"""The recorded runs of probes: what drift compares with, and what ``ematix-probe runs`` shows."""

from __future__ import annotations

from ematix_probe.history.store import RunHistory as RunHistory

__all__ = ["RunHistory"]
