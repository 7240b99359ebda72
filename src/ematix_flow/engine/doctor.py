"""What the engine finds on this machine, and what to do about what is missing: for ``flow doctor``.

Nothing is started and Spark is not imported, unless ``start=True`` asks to try it.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from ematix_flow.engine import archive, gateway, jars
from ematix_flow.engine.cache import cache_folder
from ematix_flow.engine.java import JavaRuntime, find_java
from ematix_flow.engine.machine import cores, memory_bytes
from ematix_flow.engine.session_conf import describe
from ematix_flow.engine.settings import EngineSettings
from ematix_flow.errors import FlowError
from ematix_flow.spec.redaction import mask

Status = Literal["ok", "warn", "fail"]

PACKAGES = ("ematix-flow-spark", "pyspark", "pyarrow", "pandas", "duckdb", "sqlalchemy", "sqlglot")
OLDEST_PYTHON, NEWEST_PYTHON = (3, 10), (3, 13)
_LITTLE_DISK = 2 << 30
_LITTLE_MEMORY = 2 << 30


@dataclass(frozen=True)
class Finding:
    subject: str
    status: Status
    detail: str
    next_step: str | None = None


def diagnose(
    settings: EngineSettings, *, start: bool = False, env: Mapping[str, str] = os.environ
) -> list[Finding]:
    """Everything a session depends on; with ``start`` also a real one, timed."""
    findings = [_python(), *_packages(), _machine(), *_cache(env)]
    java, java_findings = _java(settings, env)
    findings += java_findings
    findings += _spark(settings, env)
    if java is not None:
        findings.append(_archive(java, settings, env))
    findings += _jars(env)
    findings += _engine(settings, env)
    if start:
        findings.append(_started(settings))
    return findings


def _python() -> Finding:
    version = sys.version_info[:2]
    detail = f"{platform.python_version()} at {sys.executable}"
    if OLDEST_PYTHON <= version <= NEWEST_PYTHON:
        return Finding("Python", "ok", detail)
    return Finding("Python", "fail", detail, "use Python 3.10 to 3.13")


def _packages() -> Iterator[Finding]:
    found, missing = [], []
    for name in PACKAGES:
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            missing.append(name)
    yield Finding("packages", "ok", ", ".join(found))
    if "ematix-flow-spark" in missing:  # running from a checkout
        missing.remove("ematix-flow-spark")
    if missing:
        yield Finding(
            "packages", "fail", f"not installed: {', '.join(missing)}", "pip install ematix-flow-spark"
        )


def _machine() -> Finding:
    memory = memory_bytes()
    detail = f"{cores()} cores, {_size(memory)} of memory"
    if memory < _LITTLE_MEMORY:
        return Finding("machine", "warn", detail, "Spark wants 2 GB; set a small  memory  under [engine]")
    return Finding("machine", "ok", detail)


def _cache(env: Mapping[str, str]) -> Iterator[Finding]:
    try:
        folder = cache_folder(env)
    except FlowError as error:
        yield Finding("cache", "fail", error.what, error.next_step)
        return
    for subject, path in (("cache", folder), ("temporary files", Path(tempfile.gettempdir()))):
        free = shutil.disk_usage(path).free
        detail = f"{path}, {_size(free)} free"
        if free < _LITTLE_DISK:
            yield Finding(subject, "warn", detail, "free some space: Spark spills large loads to disk")
        else:
            yield Finding(subject, "ok", detail)


def _java(settings: EngineSettings, env: Mapping[str, str]) -> tuple[JavaRuntime | None, list[Finding]]:
    if settings.is_connect:
        return None, [Finding("Java", "ok", "not needed: Spark runs elsewhere")]
    try:
        java = find_java(env)
    except FlowError as error:
        return None, [Finding("Java", "fail", error.what, error.next_step)]
    findings = [Finding("Java", "ok", f"{java.version} from {java.source} ({java.home})")]
    if java.passed_over:
        findings.append(Finding("Java", "ok", f"passed over: {'; '.join(java.passed_over)}"))
    return java, findings


def _spark(settings: EngineSettings, env: Mapping[str, str]) -> Iterator[Finding]:
    try:
        installed = metadata.version("pyspark")
    except metadata.PackageNotFoundError:
        return
    locked = jars.jar_lock().spark
    if installed == locked:
        yield Finding("Spark", "ok", f"{installed}, in {gateway.spark_home()}")
    else:
        yield Finding(
            "Spark",
            "warn",
            f"{installed}, while the connectors' jars are for {locked}",
            f'pip install "pyspark=={locked}"',
        )
    named = env.get("SPARK_HOME")
    if named and Path(named).resolve() != gateway.spark_home().resolve():
        yield Finding(
            "Spark", "warn", f"SPARK_HOME={named} is not used: PySpark brings its own", "unset SPARK_HOME"
        )


def _archive(java: JavaRuntime, settings: EngineSettings, env: Mapping[str, str]) -> Finding:
    subject = "class-data archive"
    if not settings.is_local:
        return Finding(subject, "ok", "not used on a cluster")
    try:
        mode = archive.archive_mode(env)
        made = archive.archive_for(java, gateway.class_path([], env), env)
    except FlowError as error:
        return Finding(subject, "fail", error.what, error.next_step)
    if mode == "off":
        return Finding(subject, "warn", "off: Spark takes twice as long to start", "unset EMATIX_FLOW_CDS")
    if made.ready:
        return Finding(subject, "ok", f"{made.path}, {_size(made.path.stat().st_size)}")
    if made.failed_lately:
        return Finding(
            subject, "warn", "could not be made; tried again after a day", "EMATIX_FLOW_CDS=off hides this"
        )
    if mode == "auto" and env.get("CI"):
        return Finding(subject, "ok", "not made where CI is set (EMATIX_FLOW_CDS=sync makes it)")
    if mode == "use":
        return Finding(subject, "ok", "not there, and not made (EMATIX_FLOW_CDS=sync makes it)")
    return Finding(subject, "ok", "not there yet: made in the background after the next run")


def _jars(env: Mapping[str, str]) -> Iterator[Finding]:
    lock = jars.jar_lock()
    try:
        found = jars.status(env=env)
    except FlowError:
        return  # the cache was reported already
    for group in lock.groups:
        of_group = [s for s in found if s.artifact.backend == group]
        missing = [s for s in of_group if not s.present]
        if missing:
            size = _size(sum(s.artifact.size for s in missing))
            detail = (
                f"{len(missing)} of {len(of_group)} not here ({size}): fetched when a pipeline needs them"
            )
            yield Finding(f"jars: {group}", "ok", detail, f"flow jars fetch {group}")
        else:
            yield Finding(f"jars: {group}", "ok", f"{len(of_group)} here")


def _engine(settings: EngineSettings, env: Mapping[str, str]) -> Iterator[Finding]:
    try:
        choices = describe(settings, env)
    except FlowError as error:
        yield Finding("engine", "fail", error.what, error.next_step)
        return
    for choice in choices:
        if choice.name == "class-data archive":
            continue  # told in full above
        yield Finding(choice.name, "ok", f"{choice.value}: {choice.reason}")


def _started(settings: EngineSettings) -> Finding:
    from ematix_flow.engine.session import spark_session

    began = time.monotonic()
    try:
        session = spark_session(settings)
        up = time.monotonic()
        rows = session.range(0, 100, 1, 2).mapInArrow(lambda batches: batches, "id long").count()
    except FlowError as error:
        return Finding("start", "fail", error.what, error.next_step)
    except Exception as error:
        from ematix_flow.engine.failures import translate

        told = translate(error, what="a first job")
        return Finding("start", "fail", told.what, told.next_step)
    job = time.monotonic() - up
    detail = f"{settings.master}: session in {up - began:.1f} s, a first job of {rows} rows in {job:.1f} s"
    return Finding("start", "ok", mask(detail))


def _size(count: int) -> str:
    for unit, width in (("GB", 30), ("MB", 20)):
        if count >= 1 << width:
            return f"{count / (1 << width):.1f} {unit}"
    return f"{count >> 10} kB"
