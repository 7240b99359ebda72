"""The name that users of ematix_flow know: ``from ematix_probe.flow import probe_from_table``."""

from __future__ import annotations

from ematix_probe.from_tables import probe_from_table

__all__ = ["probe_from_table"]
