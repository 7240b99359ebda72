"""Incremental loads and their place in the ledger, the same for every target.

A range alone does not name a batch: late rows at the bound give the same range again. What keeps an
incremental load from counting twice is the watermark itself, compared inside the transaction.
"""

from __future__ import annotations

import json

from ematix_flow.backends.base import Load, LoadResult
from ematix_flow.errors import TargetFailed
from ematix_flow.spec.watermarks import SourceRange, Watermark


def batch_key(load: Load, high: Watermark | None) -> str:
    """The load's own key, or for an incremental one the range that it read and its run."""
    if load.batch_key is not None:
        return load.batch_key
    low = load.range.low if load.range else None
    ends = [mark.to_json() if mark else None for mark in (low, high)]
    return json.dumps([*ends, str(load.run_id)], sort_keys=True)


def made_no_progress(source_range: SourceRange | None, applied: LoadResult) -> bool:
    """Whether an incremental load wrote nothing and got no further."""
    if source_range is None or applied.rows_inserted or applied.rows_updated or applied.rows_deleted:
        return False
    low, high = source_range.low, applied.watermark
    return high is None or (low is not None and high.value == low.value)


def require_unmoved_watermark(load: Load, current: Watermark | None) -> None:
    """Refuse a load that was read from a position which another run has moved since."""
    if load.range is None:
        return
    low = load.range.low
    if (current.value if current else None) == (low.value if low else None):
        return
    now, then = (mark.encode() if mark else "its beginning" for mark in (current, low))
    raise TargetFailed(
        f"the watermark of {load.target} is at {now}, this run read from {then}: another run came between",
        state=f"{load.table.label} is as that run left it",
        next_step="run it again: it reads on from where the other one ended",
    )
