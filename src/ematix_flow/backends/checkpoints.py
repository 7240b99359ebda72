"""A checkpoint of Spark's, written anew from positions that a target remembers.

Some sources can go on from an offset of theirs only, and not from an option: Delta's may lie within a
version. Spark takes such an offset from a checkpoint, so that a lost one is written again.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from pathlib import Path


def write_checkpoint(folder: Path, positions: Sequence[str]) -> None:
    """Make ``folder``, which must not be there, the checkpoint of a query that has read up to here.

    ``positions`` are the offsets of its sources, in the order in which it reads them. The query has an id
    of its own, and its next batch is number 1. State of windows and joins is not in it.
    """
    aside = folder.with_name(f".{folder.name}.{uuid.uuid4().hex}")
    for name in ("offsets", "commits"):
        (aside / name).mkdir(parents=True)
    (aside / "metadata").write_text(json.dumps({"id": str(uuid.uuid4())}))
    facts = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 0, "conf": {}})
    (aside / "offsets" / "0").write_text("\n".join(["v1", facts, *positions]))
    (aside / "commits" / "0").write_text("v1\n" + json.dumps({"nextBatchWatermarkMs": 0}))
    aside.rename(folder)
