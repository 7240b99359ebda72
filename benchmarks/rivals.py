"""What the rivals need: jars for Spark, and separate environments for those that are Python packages.

JDBC drivers are pinned in ``rivals.lock``, fetched and checked as the product does its jars; Delta and
Kafka use the product's jars. The packages are pinned in ``lock/rivals.txt``, those of data probes and load
probes in ``lock/rivals-probes.txt``, that of the page in ``lock/rivals-page.txt``, with hashes.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from packaging.markers import Marker

from benchmarks.datasets import DATA
from benchmarks.machine import REPOSITORY
from benchmarks.process import compile_libraries

LOCK_FILE = Path(__file__).with_name("rivals.lock")
PACKAGES = REPOSITORY / "lock" / "rivals.txt"
ENVIRONMENT = DATA / "rivals"
PROBE_PACKAGES = REPOSITORY / "lock" / "rivals-probes.txt"
PROBE_ENVIRONMENT = DATA / "rivals-probes"
PAGE_PACKAGES = REPOSITORY / "lock" / "rivals-page.txt"
PAGE_ENVIRONMENT = DATA / "rivals-page"
SHARED = ("delta", "kafka")  # their jars come from the product's lock
PROBES_SHOWN = {"great-expectations": "Great Expectations", "soda-core": "Soda", "duckdb": "DuckDB of Soda"}
PAGE_SHOWN = {"dagster-webserver": "Dagster"}
LOADS_SHOWN = {"locust": "locust"}
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
    return drivers | _shown(PACKAGES, _SHOWN)


def probe_rival_versions(shown: Mapping[str, str] = PROBES_SHOWN) -> dict[str, str]:
    """The versions of the rivals of data probes."""
    return _shown(PROBE_PACKAGES, shown)


def rival_python() -> Path:
    """The interpreter of the rivals' environment."""
    return _python_of(ENVIRONMENT, PACKAGES)


def probe_rival_python() -> Path:
    """The interpreter of the environment of the rivals of data probes and load probes."""
    return _python_of(PROBE_ENVIRONMENT, PROBE_PACKAGES)


def page_rival_python() -> Path:
    """The interpreter of the environment of the rival of the page."""
    return _python_of(PAGE_ENVIRONMENT, PAGE_PACKAGES)


def page_rival_versions() -> dict[str, str]:
    """The version of the rival of the page."""
    return _shown(PAGE_PACKAGES, PAGE_SHOWN)


def _shown(packages: Path, shown: Mapping[str, str]) -> dict[str, str]:
    """Versions by the names that people know; of a package with several, that for this Python."""
    pins = re.findall(
        r"^([a-z0-9-]+)==([^ ]+)(?: ; ([^\\\n]+))?", packages.read_text(encoding="utf-8"), re.MULTILINE
    )
    pinned = {name: version for name, version, marker in pins if not marker or Marker(marker).evaluate()}
    return {called: pinned[name] for name, called in shown.items()}


def _python_of(environment: Path, packages: Path) -> Path:
    """The interpreter of an environment, which is created if it is missing or its lock has changed."""
    python = environment / "bin" / "python"
    stamp = environment / "made-from"
    wanted = hashlib.sha256(packages.read_bytes() + sys.version.encode()).hexdigest()
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    shutil.rmtree(environment, ignore_errors=True)
    uv = os.environ.get("UV") or shutil.which("uv")
    if uv is None:
        raise RuntimeError("no uv on the path: run it by  make bench , which installs it")
    subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, str(environment)], check=True)
    install = [uv, "pip", "sync", "--quiet", "--python", str(python), "--require-hashes", str(packages)]
    subprocess.run(install, check=True)
    compile_libraries(python)
    stamp.write_text(wanted)
    return python
