"""What users import to shape rows before a load: ``from ematix_flow.transforms import filter_where``."""

from __future__ import annotations

from ematix_flow.spec.transforms import deduplicate_by, filter_where, limit, sample_pct

__all__ = ["deduplicate_by", "filter_where", "limit", "sample_pct"]
