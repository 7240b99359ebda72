"""Batch keys and watermark checks of incremental loads, the same for every target.

A range alone does not identify a batch: late rows at the bound give the same range again. The watermark,
compared inside the transaction, keeps an incremental load from counting twice.
"""

from __future__ import annotations

import json

from ematix_flow.backends.base import Load, LoadResult
from ematix_flow.errors import TargetFailed
from ematix_flow.spec.watermarks import SourceRange, Watermark


def batch_key(load: Load, high: Watermark | None) -> str:
    """The load's own key; for an incremental load, a key made of the range that it read and its run."""
    if load.batch_key is not None:
        return load.batch_key
    low = load.plan.range.low if load.plan.range else None
    ends = [mark.to_json() if mark else None for mark in (low, high)]
    return json.dumps([*ends, str(load.run_id)], sort_keys=True)


def made_no_progress(source_range: SourceRange | None, applied: LoadResult) -> bool:
    """Whether an incremental load wrote nothing and did not move the watermark."""
    if source_range is None or applied.rows.written or applied.rows.deleted:
        return False
    low, high = source_range.low, applied.watermark
    return high is None or (low is not None and high.value == low.value)


def require_unmoved_watermark(load: Load, current: Watermark | None) -> None:
    """Refuse a load whose starting watermark another run has moved since it was read."""
    if load.plan.range is None:
        return
    low = load.plan.range.low
    if (current.value if current else None) == (low.value if low else None):
        return
    now, then = (mark.encode() if mark else "its beginning" for mark in (current, low))
    raise TargetFailed(
        f"the watermark of {load.target} is at {now}, but this run read from {then}: another run moved it",
        state=f"{load.table.label} is as that run left it",
        next_step="run it again: it continues where the other run ended",
    )
