"""What this machine gives to Spark: cores and memory, as a container's limits leave them."""

from __future__ import annotations

import math
import os
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")
_UNLIMITED = 1 << 60  # cgroup v1 writes a huge number for "no limit"


def usable_processors() -> int:
    """The processors that the system lets this process use; a container's quota is not considered."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cores(cgroup: Path = CGROUP) -> int:
    """The processors this process may use, never less than one."""
    usable = usable_processors()
    quota = _cpu_quota(cgroup)
    return max(1, min(usable, quota) if quota else usable)


def memory_bytes(cgroup: Path = CGROUP) -> int:
    """The memory this process may use."""
    try:
        installed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):  # unknown on this system
        installed = 4 << 30
    limits = [installed]
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        text = _read(cgroup / name)
        if text.isdigit() and 0 < int(text) < _UNLIMITED:
            limits.append(int(text))
    return min(limits)


def _cpu_quota(cgroup: Path) -> int | None:
    fields = _read(cgroup / "cpu.max").split()
    if not fields:
        fields = [_read(cgroup / "cpu" / f"cpu.cfs_{name}_us") for name in ("quota", "period")]
    if len(fields) == 2 and all(f.isdigit() for f in fields) and int(fields[1]) > 0:
        return math.ceil(int(fields[0]) / int(fields[1]))
    return None


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
