"""The memory and the processors that this process may use: of the container, else of the machine."""

from __future__ import annotations

import os
import re
from pathlib import Path

MEMORY_VARIABLE = "EMATIX_PROBE_MEMORY"
_SIZE = re.compile(r"\d+(\.\d+)?\s*[KMGT]i?B", re.IGNORECASE)
_SMALLEST = 256 << 20
_CGROUPS = Path("/sys/fs/cgroup")


def scan_memory() -> str:
    """What a scan may hold before it spills: half of what is free, or ``EMATIX_PROBE_MEMORY`` (``2GB``)."""
    given = os.environ.get(MEMORY_VARIABLE, "").strip()
    if _SIZE.fullmatch(given):
        return given
    return f"{max(_free_memory() // 2, _SMALLEST) >> 20}MiB"


def processors() -> int:
    if hasattr(os, "sched_getaffinity"):
        return max(len(os.sched_getaffinity(0)), 1)
    return os.cpu_count() or 1


def _free_memory() -> int:
    bounds = [_machine_memory()]
    for limit, used in (
        (_CGROUPS / "memory.max", _CGROUPS / "memory.current"),
        (_CGROUPS / "memory/memory.limit_in_bytes", _CGROUPS / "memory/memory.usage_in_bytes"),
    ):
        allowed = _number(limit)
        if allowed is not None:
            bounds.append(
                max(allowed - (_number(used) or 0), allowed // 4)
            )  # files in the cache count as used
    return min(bounds)


def _machine_memory() -> int:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    except (OSError, ValueError, IndexError):
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (OSError, ValueError, AttributeError):
        return 2 << 30


def _number(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
