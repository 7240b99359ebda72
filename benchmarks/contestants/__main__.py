"""``python -m benchmarks.contestants NAME JOB``: one contestant, one load, with marks for the harness."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path

from benchmarks.contestants import prepare
from benchmarks.job import Job


def main(name: str, file: str) -> int:
    job = Job.read(Path(file))
    try:
        load = prepare(name, job)
        job.mark("ready")
        details = load()
        job.mark("loaded", **details)
    except Exception as error:
        traceback.print_exc()
        job.mark("failed", error=f"{type(error).__name__}: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
