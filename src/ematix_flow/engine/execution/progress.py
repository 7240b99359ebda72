"""Reports row counts of running tasks to the driver.

Each task writes its counts to a small file now and then; the driver adds them up. On a cluster the folder is
not shared, and the driver sees only the final counts.
"""

from __future__ import annotations

import shutil
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ematix_flow.observe.listener import Progress

if TYPE_CHECKING:
    import pyarrow as pa

_EVERY_SECONDS = 0.25
_COUNTS = struct.Struct("<QQ")  # rows and bytes


def count_batches(batches: Iterable[pa.RecordBatch], folder: str, part: str) -> Iterator[pa.RecordBatch]:
    """Pass on the batches, and write the running counts to ``folder``. Runs inside a task."""
    rows = size = 0
    written = time.monotonic()
    for batch in batches:
        yield batch
        rows += batch.num_rows
        size += batch.nbytes
        if time.monotonic() - written >= _EVERY_SECONDS:
            written = time.monotonic()
            _write_counts(folder, part, rows, size)
    _write_counts(folder, part, rows, size)


def _write_counts(folder: str, part: str, rows: int, size: int) -> None:
    place = Path(folder)
    if place.is_dir():  # missing on another machine, where the driver could not read it
        (place / part).write_bytes(_COUNTS.pack(rows, size))


@contextmanager
def watch_progress(report: Callable[[Progress], None], expected_rows: int | None = None) -> Iterator[str]:
    """A folder for tasks' counts.

    Calls ``report`` with the sums as they grow, and at the end of the block.
    """
    folder = Path(tempfile.mkdtemp(prefix="ematix-flow-progress-"))
    done = threading.Event()
    found: dict[str, tuple[int, int]] = {}

    def look() -> Progress:
        for file in folder.iterdir():
            data = file.read_bytes()
            if len(data) == _COUNTS.size:  # else it is being written: keep the previous counts
                found[file.name] = _COUNTS.unpack(data)
        rows, size = (sum(counts) for counts in zip((0, 0), *found.values(), strict=True))
        return Progress(rows, size, expected_rows)

    def poll() -> None:
        last = Progress(0, 0, expected_rows)
        over = False
        while not over:
            over = done.wait(_EVERY_SECONDS)
            now = look()
            if now != last:
                last = now
                report(now)

    thread = threading.Thread(target=poll, name="ematix-flow-progress", daemon=True)
    thread.start()
    try:
        yield str(folder)
    finally:
        done.set()
        thread.join()
        shutil.rmtree(folder, ignore_errors=True)
