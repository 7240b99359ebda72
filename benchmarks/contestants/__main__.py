"""``python -m benchmarks.contestants NAME JOB``: one contestant, its loads, with marks for the harness.

If the first load was not too long, a second one follows in the same process: it shows the cost of starting.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from pathlib import Path

from benchmarks.contestants import prepare
from benchmarks.job import Job

AGAIN_BELOW_SECONDS = 120.0


def main(name: str, file: str) -> int:
    job = Job.read(Path(file))
    try:
        load = prepare(name, job)
        job.mark("ready", pid=os.getpid())
        for mark, target in zip(("loaded", "loaded again"), job.targets, strict=False):
            started = time.monotonic()
            details = load(target)
            job.mark(mark, **details)
            if time.monotonic() - started > AGAIN_BELOW_SECONDS:
                break
    except Exception as error:
        traceback.print_exc()
        job.mark("failed", error=f"{type(error).__name__}: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
