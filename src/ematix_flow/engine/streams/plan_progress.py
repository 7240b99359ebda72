"""How far a stream has come, for its plan: the last batch of each query, and the size of its state."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

from ematix_flow.engine.streams.checkpoint import Checkpoint
from ematix_flow.engine.streams.state.status import read_status
from ematix_flow.plan.stream_progress import QueryProgress


def describe_progress(label: str, checkpoint: Checkpoint, new_targets: Sequence[str]) -> QueryProgress:
    """``new_targets`` are those that get only what comes from now on."""
    status = read_status(checkpoint.state_folder)
    watermark = None
    if status is not None and status.watermark is not None:
        epoch = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
        try:
            watermark = epoch + dt.timedelta(microseconds=status.watermark)
        except OverflowError:
            watermark = None
    return QueryProgress(
        label,
        str(checkpoint.folder),
        checkpoint.last_committed(),
        state_rows=status.rows if status is not None else None,
        state_bytes=status.bytes if status is not None else None,
        watermark=watermark,
        new_targets=tuple(new_targets),
    )
