"""Row counts from tasks to the driver while they run.

A task writes its count to a small file now and then; the driver adds them up. On one machine that is
all it takes; on a cluster the folder is not shared and the driver sees no counts, only the end.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

_EVERY_SECONDS = 0.25


def counted(batches: Iterable[pa.RecordBatch], folder: str, part: str) -> Iterator[pa.RecordBatch]:
    """The same batches, with the running count left in ``folder``. Runs inside a task."""
    rows, written = 0, time.monotonic()
    for batch in batches:
        yield batch
        rows += batch.num_rows
        if time.monotonic() - written >= _EVERY_SECONDS:
            written = time.monotonic()
            _leave(folder, part, rows)
    _leave(folder, part, rows)


def _leave(folder: str, part: str, rows: int) -> None:
    place = Path(folder)
    if place.is_dir():  # on another machine it is not, and nobody would read it
        (place / part).write_text(str(rows))


@contextmanager
def watch(report: Callable[[int], None]) -> Iterator[str]:
    """A folder for tasks; ``report`` is called with the total as it grows, until the block ends."""
    folder = Path(tempfile.mkdtemp(prefix="ematix-flow-progress-"))
    done = threading.Event()

    def poll() -> None:
        last = -1
        while not done.wait(_EVERY_SECONDS):
            total = sum(int(f.read_text() or 0) for f in folder.iterdir())
            if total != last:
                last = total
                report(total)

    thread = threading.Thread(target=poll, name="ematix-flow-progress", daemon=True)
    thread.start()
    try:
        yield str(folder)
    finally:
        done.set()
        thread.join()
        shutil.rmtree(folder, ignore_errors=True)
