"""Connector jars: the lock, the cache, and fetching with the Ivy that ships inside PySpark.

Every artifact is pinned with its SHA-256 in ``jars.lock.toml``; there is no transitive resolution. A
mirror is honoured: ``EMATIX_FLOW_IVY_SETTINGS`` (a file of Ivy's), ``DEFAULT_ARTIFACT_REPOSITORY`` (the
root of a Maven layout), or the ``<mirror>`` of Maven's own settings, in this order.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from filelock import FileLock

from ematix_flow.engine.jvm import ivy
from ematix_flow.engine.jvm.cache_folder import cache_subfolder
from ematix_flow.errors import JarsUnavailable, UnknownName, did_you_mean

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

LOCK_FILE = Path(__file__).with_name("jars.lock.toml")


@dataclass(frozen=True)
class JarArtifact:
    """One pinned file. ``backend`` is the jar group that needs it."""

    backend: str
    group: str
    name: str
    version: str
    size: int
    sha256: str

    @property
    def file(self) -> str:
        return f"{self.name}-{self.version}.jar"

    def __str__(self) -> str:
        return f"{self.group}:{self.name}:{self.version}"


@dataclass(frozen=True)
class JarLock:
    spark: str
    artifacts: tuple[JarArtifact, ...]
    about: Mapping[str, str] = field(hash=False)
    conf: Mapping[str, Mapping[str, str]] = field(hash=False)

    @property
    def groups(self) -> tuple[str, ...]:
        return tuple(self.about)

    def artifacts_of(self, groups: Iterable[str]) -> list[JarArtifact]:
        """The artifacts of these groups, each once, in the lock's order."""
        wanted = set(groups)
        for name in sorted(wanted - set(self.about)):
            raise UnknownName(
                f"there is no jar group '{name}'.{did_you_mean(name, self.about)}",
                next_step="flow jars list  shows the groups",
            )
        return [artifact for artifact in self.artifacts if artifact.backend in wanted]


@dataclass(frozen=True)
class JarStatus:
    """Whether one artifact is in the cache."""

    artifact: JarArtifact
    path: Path
    present: bool


FetchProgress = Callable[[JarArtifact, int, int], None]
"""Called for each cached artifact, with the number cached so far and the total."""


@functools.cache
def jar_lock(file: Path = LOCK_FILE) -> JarLock:
    content = tomllib.loads(file.read_text(encoding="utf-8"))
    groups = content["group"]
    artifacts = tuple(
        JarArtifact(a["for"], a["group"], a["name"], a["version"], a["size"], a["sha256"])
        for a in content["artifact"]
    )
    return JarLock(
        content["spark"],
        artifacts,
        {name: about["about"] for name, about in groups.items()},
        {name: about.get("conf", {}) for name, about in groups.items()},
    )


def jar_session_conf(groups: Iterable[str], lock: JarLock | None = None) -> dict[str, str]:
    """The Spark settings of the groups. Their session extensions are joined."""
    merged: dict[str, str] = {}
    conf = (lock or jar_lock()).conf
    for group in sorted(set(groups)):
        for key, value in conf.get(group, {}).items():
            if key == "spark.sql.extensions" and key in merged:
                value = f"{merged[key]},{value}"
            merged[key] = value
    return merged


def jar_status(
    groups: Sequence[str] | None = None,
    *,
    verify: bool = False,
    env: Mapping[str, str] = os.environ,
    lock: JarLock | None = None,
) -> list[JarStatus]:
    """Which jars are cached, by size; with ``verify`` by checksum."""
    lock = lock or jar_lock()
    folder = cache_subfolder("jars", env)
    answers = []
    for artifact in lock.artifacts_of(lock.groups if groups is None else groups):
        path = folder / artifact.file
        present = path.is_file() and path.stat().st_size == artifact.size
        if present and verify:
            present = _sha256(path) == artifact.sha256
        answers.append(JarStatus(artifact, path, present))
    return answers


def jars_for(
    groups: Sequence[str], *, env: Mapping[str, str] = os.environ, lock: JarLock | None = None
) -> list[Path]:
    """Paths of the groups' jars. Missing jars are fetched, unless ``EMATIX_FLOW_OFFLINE`` is set."""
    if not groups:
        return []
    missing = [s.artifact for s in jar_status(groups, env=env, lock=lock) if not s.present]
    if missing and env.get("EMATIX_FLOW_OFFLINE", "") not in ("", "0"):
        raise _jars_unavailable(groups, missing, "EMATIX_FLOW_OFFLINE is set")
    if missing:
        fetch_jars(groups, env=env, lock=lock)
    return [s.path for s in jar_status(groups, env=env, lock=lock)]


def fetch_jars(
    groups: Sequence[str] | None = None,
    progress: FetchProgress | None = None,
    *,
    env: Mapping[str, str] = os.environ,
    lock: JarLock | None = None,
) -> list[JarStatus]:
    """Fetch the missing jars of the groups (all groups, if none is named) into the cache."""
    lock = lock or jar_lock()
    wanted = lock.artifacts_of(lock.groups if groups is None else groups)
    folder = cache_subfolder("jars", env)
    with FileLock(folder / ".lock"):
        missing = [s.artifact for s in jar_status(groups, env=env, lock=lock) if not s.present]
        done = len(wanted) - len(missing)
        if missing:
            _fetch_missing(missing, folder, env, groups or lock.groups, progress, done)
    return jar_status(groups, env=env, lock=lock)


def _fetch_missing(
    missing: Sequence[JarArtifact],
    folder: Path,
    env: Mapping[str, str],
    groups: Sequence[str],
    progress: FetchProgress | None,
    done: int,
) -> None:
    total = done + len(missing)
    arriving = Path(tempfile.mkdtemp(prefix=".arriving-", dir=folder))
    by_name = {artifact.name: artifact for artifact in missing}
    arrived = 0

    def report_jar(name: str) -> None:
        nonlocal arrived
        if name in by_name and progress is not None:
            arrived += 1
            progress(by_name[name], done + arrived, total)

    try:
        coordinates = [(a.group, a.name, a.version) for a in missing]
        complaint = ivy.retrieve(coordinates, arriving, env, report_jar)
        for artifact in missing:
            file = arriving / artifact.file
            if not file.is_file():
                raise _jars_unavailable(groups, missing, complaint or f"{artifact} did not arrive")
            found = _sha256(file)
            if found != artifact.sha256:
                raise JarsUnavailable(
                    f"{artifact} is not the file that the lock names: its SHA-256 is {found},"
                    f" not {artifact.sha256}",
                    state="the file was thrown away",
                    next_step="the repository or mirror gives out another file of this name: use a mirror"
                    " that you trust, then run  flow jars fetch",
                )
        for artifact in missing:
            os.replace(arriving / artifact.file, folder / artifact.file)
    finally:
        shutil.rmtree(arriving, ignore_errors=True)


def _jars_unavailable(groups: Sequence[str], missing: Sequence[JarArtifact], reason: str) -> JarsUnavailable:
    names = ", ".join(str(a) for a in missing[:3]) + (
        f" and {len(missing) - 3} more" if len(missing) > 3 else ""
    )
    return JarsUnavailable(
        f"Spark's jars for {', '.join(groups)} are not on this machine ({names}): {reason}",
        next_step=f"run  flow jars fetch {' '.join(groups)}  where there is a network; behind a mirror set"
        " DEFAULT_ARTIFACT_REPOSITORY to its address, or EMATIX_FLOW_IVY_SETTINGS to a settings file of Ivy",
    )


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
