"""What the rivals need: jars for Spark, and a separate environment for those that are Python packages.

JDBC drivers are pinned in ``rivals.lock``, fetched and checked as the product does its jars; Delta and
Kafka use the product's jars. The packages are pinned in ``lock/rivals.txt``, with hashes.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from benchmarks.datasets import DATA
from benchmarks.machine import REPOSITORY
from benchmarks.process import compile_libraries

LOCK_FILE = Path(__file__).with_name("rivals.lock")
PACKAGES = REPOSITORY / "lock" / "rivals.txt"
ENVIRONMENT = DATA / "rivals"
SHARED = ("delta", "kafka")  # their jars come from the product's lock
_SHOWN = {"dlt": "dlt", "connectorx": "connectorx", "sling-linux-amd64": "Sling", "duckdb": "DuckDB alone"}


def rival_jars(kinds: Iterable[str]) -> list[Path]:
    """The jars that Spark needs for these systems; missing ones are fetched."""
    from ematix_flow.engine.jvm.jars import jar_lock, jars_for

    lock, asked = jar_lock(LOCK_FILE), list(dict.fromkeys(kinds))
    drivers = jars_for([kind for kind in asked if kind in lock.groups], lock=lock)
    return drivers + jars_for([kind for kind in asked if kind in SHARED])


def rival_versions(kinds: Iterable[str]) -> dict[str, str]:
    """The versions of the jars of these systems, and of the packages."""
    from ematix_flow.engine.jvm.jars import jar_lock

    kinds = set(kinds)
    lock = jar_lock(LOCK_FILE)
    shared = {kind: jar_lock().artifacts_of([kind])[0] for kind in SHARED if kind in kinds}
    drivers = {jar.name: jar.version for jar in shared.values()} | {
        f"{artifact.name} (JDBC)": artifact.version
        for artifact in lock.artifacts_of(kinds & set(lock.groups))
    }
    pinned = dict(re.findall(r"^([a-z0-9-]+)==([^ ]+)", PACKAGES.read_text(encoding="utf-8"), re.MULTILINE))
    return drivers | {shown: pinned[name] for name, shown in _SHOWN.items()}


def rival_python() -> Path:
    """The interpreter of the rivals' environment, created if it is missing or the lock has changed."""
    python = ENVIRONMENT / "bin" / "python"
    stamp = ENVIRONMENT / "made-from"
    wanted = hashlib.sha256(PACKAGES.read_bytes() + sys.version.encode()).hexdigest()
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    shutil.rmtree(ENVIRONMENT, ignore_errors=True)
    uv = os.environ.get("UV") or shutil.which("uv")
    if uv is None:
        raise RuntimeError("no uv on the path: run it by  make bench , which installs it")
    subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, str(ENVIRONMENT)], check=True)
    install = [uv, "pip", "sync", "--quiet", "--python", str(python), "--require-hashes", str(PACKAGES)]
    subprocess.run(install, check=True)
    compile_libraries(python)
    stamp.write_text(wanted)
    return python
