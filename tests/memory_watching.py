"""A run in its own process, and how large its Python processes become.

The system keeps the peak size of a process (``VmHWM``), so it does not matter when it is read.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


def watched(code: str, argument: str, folder: Path) -> tuple[Any, dict[int, int], int]:
    """The JSON line that the code printed, the peak of each Python process, and the PID of the code.

    The code prints the line, then waits for input before it ends, so that all peaks can be read.
    """
    process = subprocess.Popen(
        [sys.executable, "-c", code, argument],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *filter(None, sys.path)])},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    peaks: dict[int, int] = {}
    os.set_blocking(process.stdout.fileno(), False)
    told = ""
    while not told and process.poll() is None:  # workers come and go: each is seen while it is there
        peaks |= python_peaks(process.pid)
        time.sleep(0.2)
        told = process.stdout.readline().strip()  # Java may write an empty line first
    peaks |= python_peaks(process.pid)
    process.communicate("\n", timeout=120)
    assert told, "the run failed"
    return json.loads(told), peaks, process.pid


def python_peaks(root: int) -> dict[int, int]:
    """The greatest size so far, in bytes, of each Python process that descends from this one, itself too."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, ValueError):
                continue  # it has just ended
    family, added = {root}, True
    while added:
        found = {pid for pid, parent in parents.items() if parent in family and pid not in family}
        family |= found
        added = bool(found)
    return {pid: peak for pid in family for peak in [_peak(pid)] if peak is not None}


def _peak(pid: int) -> int | None:
    try:
        if "python" not in os.readlink(f"/proc/{pid}/exe"):
            return None
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return None
    lines = [line for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(lines[0].split()[1]) * 1024 if lines else None
