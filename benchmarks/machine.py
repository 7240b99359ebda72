"""The circumstances of a measurement: the machine, the versions, the commit."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
LIBRARIES = ("pyspark", "pyarrow", "duckdb", "adbc-driver-postgresql", "psycopg", "deltalake")


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0))


def machine_facts() -> dict[str, Any]:
    return {
        "cores": cores(),
        "processor": _processor(Path("/proc/cpuinfo").read_text(encoding="utf-8")),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": f"{platform.system()} {platform.release()}",
        "load_average": round(os.getloadavg()[0], 2),
    }


def versions(**others: str | None) -> dict[str, str]:
    """The versions of Python, Java, the libraries, and ``others``."""
    from ematix_flow import __version__
    from ematix_flow.engine.jvm.java_runtime import find_java

    found = {name: metadata.version(name) for name in LIBRARIES}
    told = {name: version for name, version in others.items() if version}
    return {
        "ematix-flow": __version__,
        "python": platform.python_version(),
        "java": find_java().version,
        **found,
        **told,
    }


def commit() -> str:
    """The commit that was measured, with a mark when the product's source differed from it."""

    def git(*arguments: str) -> str:
        command = ["git", *arguments]
        return subprocess.run(
            command, cwd=REPOSITORY, capture_output=True, text=True, check=True
        ).stdout.strip()

    return git("rev-parse", "--short=12", "HEAD") + (" and changes" if git("status", "-s", "src") else "")


def busy() -> bool:
    """Whether other processes use the machine, so that measurements say little."""
    return os.getloadavg()[0] > 0.5 * cores()


def _processor(cpuinfo: str) -> str:
    for line in cpuinfo.splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
