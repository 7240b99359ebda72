"""Where a batch of limited size ends in a spool, read from the segments themselves.

This runs in the process that Spark asks for new positions, while the index is open in another one. The
footer of a segment has the number of its messages and, where they are few, the source's positions after it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ematix_flow.backends.spool.index import segment_name

PROGRESS_KEY = b"ematix_flow.progress"


def limited_batch_end(newest: Mapping[str, Any], segments: Path, after: int, most: int) -> dict[str, Any]:
    """The position that ends a batch of at most ``most`` messages after the segment ``after``.

    ``newest`` is the position that includes all segments. A batch has at least one segment, however large.
    """
    rows, end = 0, after
    progress: Mapping[str, str] | None = None
    for number in range(after + 1, int(newest["segment"]) + 1):
        footer = _read_footer(segments / segment_name(number))
        if footer is not None:
            rows += footer[0]
            if rows > most and end > after:
                position: dict[str, Any] = {"segment": end, "spool": newest["spool"]}
                return {**position, "progress": dict(progress)} if progress else position
            progress = footer[1]
        end = number
    return dict(newest)


def _read_footer(path: Path) -> tuple[int, Mapping[str, str] | None] | None:
    import pyarrow.parquet as pq

    try:
        metadata = pq.read_metadata(path)
    except FileNotFoundError:  # settled and removed: it has no messages to add
        return None
    progress = (metadata.metadata or {}).get(PROGRESS_KEY)
    return metadata.num_rows, json.loads(progress) if progress else None
