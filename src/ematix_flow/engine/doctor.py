"""Checks this machine for ``flow doctor``: what the engine finds, and what to do about what is missing.

It starts nothing and does not import Spark, unless ``start=True``.
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

from ematix_flow.engine.jvm import class_archive, jars, java_process
from ematix_flow.engine.jvm.cache_folder import cache_folder
from ematix_flow.engine.jvm.java_runtime import JavaRuntime, find_java
from ematix_flow.engine.spark.machine_resources import cores, memory_bytes
from ematix_flow.engine.spark.session_conf import describe_session
from ematix_flow.engine.spark.settings import EngineSettings
from ematix_flow.errors import FlowError
from ematix_probe.redaction import mask

FindingStatus = Literal["ok", "warn", "fail"]

PACKAGES = ("ematix-flow-spark", "pyspark", "pyarrow", "pandas", "duckdb", "sqlalchemy", "sqlglot")
OLDEST_PYTHON, NEWEST_PYTHON = (3, 10), (3, 13)
_LOW_DISK = 2 << 30
_LOW_MEMORY = 2 << 30


@dataclass(frozen=True)
class DoctorFinding:
    subject: str
    status: FindingStatus
    detail: str
    next_step: str | None = None


def diagnose(
    settings: EngineSettings, *, start: bool = False, env: Mapping[str, str] = os.environ
) -> list[DoctorFinding]:
    """Check everything that a session needs. With ``start`` also start a session and time it."""
    findings = [_check_python(), *_check_packages(), _check_machine(), *_check_cache(env)]
    java, java_findings = _check_java(settings, env)
    findings += java_findings
    findings += _check_spark(settings, env)
    if java is not None:
        findings.append(_check_archive(java, settings, env))
    findings += _check_jars(env)
    findings += _check_engine(settings, env)
    if start:
        findings.append(_check_session_start(settings))
    return findings


def _check_python() -> DoctorFinding:
    version = sys.version_info[:2]
    detail = f"{platform.python_version()} at {sys.executable}"
    if OLDEST_PYTHON <= version <= NEWEST_PYTHON:
        return DoctorFinding("Python", "ok", detail)
    return DoctorFinding("Python", "fail", detail, "use Python 3.10 to 3.13")


def _check_packages() -> Iterator[DoctorFinding]:
    found, missing = [], []
    for name in PACKAGES:
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            missing.append(name)
    yield DoctorFinding("packages", "ok", ", ".join(found))
    if "ematix-flow-spark" in missing:  # running from a checkout
        missing.remove("ematix-flow-spark")
    if missing:
        yield DoctorFinding(
            "packages", "fail", f"not installed: {', '.join(missing)}", "pip install ematix-flow-spark"
        )


def _check_machine() -> DoctorFinding:
    memory = memory_bytes()
    detail = f"{cores()} cores, {_format_size(memory)} of memory"
    if memory < _LOW_MEMORY:
        return DoctorFinding(
            "machine", "warn", detail, "Spark wants 2 GB; set a small  memory  under [engine]"
        )
    return DoctorFinding("machine", "ok", detail)


def _check_cache(env: Mapping[str, str]) -> Iterator[DoctorFinding]:
    try:
        folder = cache_folder(env)
    except FlowError as error:
        yield DoctorFinding("cache", "fail", error.what, error.next_step)
        return
    for subject, path in (("cache", folder), ("temporary files", Path(tempfile.gettempdir()))):
        free = shutil.disk_usage(path).free
        detail = f"{path}, {_format_size(free)} free"
        if free < _LOW_DISK:
            yield DoctorFinding(subject, "warn", detail, "free some space: Spark spills large loads to disk")
        else:
            yield DoctorFinding(subject, "ok", detail)


def _check_java(
    settings: EngineSettings, env: Mapping[str, str]
) -> tuple[JavaRuntime | None, list[DoctorFinding]]:
    if settings.is_connect:
        return None, [DoctorFinding("Java", "ok", "not needed: Spark runs elsewhere")]
    try:
        java = find_java(env)
    except FlowError as error:
        return None, [DoctorFinding("Java", "fail", error.what, error.next_step)]
    findings = [DoctorFinding("Java", "ok", f"{java.version} from {java.source} ({java.home})")]
    if java.rejected_candidates:
        findings.append(DoctorFinding("Java", "ok", f"passed over: {'; '.join(java.rejected_candidates)}"))
    return java, findings


def _check_spark(settings: EngineSettings, env: Mapping[str, str]) -> Iterator[DoctorFinding]:
    try:
        installed = metadata.version("pyspark")
    except metadata.PackageNotFoundError:
        return
    locked = jars.jar_lock().spark
    if installed == locked:
        yield DoctorFinding("Spark", "ok", f"{installed}, in {java_process.spark_home()}")
    else:
        yield DoctorFinding(
            "Spark",
            "warn",
            f"{installed}, while the connectors' jars are for {locked}",
            f'pip install "pyspark=={locked}"',
        )
    named = env.get("SPARK_HOME")
    if named and Path(named).resolve() != java_process.spark_home().resolve():
        yield DoctorFinding(
            "Spark", "warn", f"SPARK_HOME={named} is not used: PySpark brings its own", "unset SPARK_HOME"
        )


def _check_archive(java: JavaRuntime, settings: EngineSettings, env: Mapping[str, str]) -> DoctorFinding:
    subject = "class-data archive"
    if not settings.is_local:
        return DoctorFinding(subject, "ok", "not used on a cluster")
    try:
        mode = class_archive.archive_mode(env)
        made = class_archive.archive_for(java, java_process.class_path([], env), env)
    except FlowError as error:
        return DoctorFinding(subject, "fail", error.what, error.next_step)
    if mode == "off":
        return DoctorFinding(
            subject, "warn", "off: Spark takes twice as long to start", "unset EMATIX_FLOW_CDS"
        )
    if made.is_ready:
        return DoctorFinding(subject, "ok", f"{made.path}, {_format_size(made.path.stat().st_size)}")
    if made.failed_recently:
        return DoctorFinding(
            subject, "warn", "could not be made; tried again after a day", "EMATIX_FLOW_CDS=off hides this"
        )
    if mode == "auto" and env.get("CI"):
        return DoctorFinding(subject, "ok", "not made where CI is set (EMATIX_FLOW_CDS=sync makes it)")
    if mode == "use":
        return DoctorFinding(subject, "ok", "not there, and not made (EMATIX_FLOW_CDS=sync makes it)")
    return DoctorFinding(subject, "ok", "not there yet: made in the background after the next run")


def _check_jars(env: Mapping[str, str]) -> Iterator[DoctorFinding]:
    lock = jars.jar_lock()
    try:
        found = jars.jar_status(env=env)
    except FlowError:
        return  # _check_cache reports the cache
    for group in lock.groups:
        of_group = [s for s in found if s.artifact.backend == group]
        missing = [s for s in of_group if not s.present]
        if missing:
            size = _format_size(sum(s.artifact.size for s in missing))
            detail = (
                f"{len(missing)} of {len(of_group)} not here ({size}): fetched when a pipeline needs them"
            )
            yield DoctorFinding(f"jars: {group}", "ok", detail, f"flow jars fetch {group}")
        else:
            yield DoctorFinding(f"jars: {group}", "ok", f"{len(of_group)} here")


def _check_engine(settings: EngineSettings, env: Mapping[str, str]) -> Iterator[DoctorFinding]:
    try:
        choices = describe_session(settings, env)
    except FlowError as error:
        yield DoctorFinding("engine", "fail", error.what, error.next_step)
        return
    for choice in choices:
        if choice.name == "class-data archive":
            continue  # reported by _check_archive
        yield DoctorFinding(choice.name, "ok", f"{choice.value}: {choice.reason}")


def _check_session_start(settings: EngineSettings) -> DoctorFinding:
    from ematix_flow.engine.spark.session import spark_session

    began = time.monotonic()
    try:
        session = spark_session(settings)
        up = time.monotonic()
        rows = session.range(0, 100, 1, 2).mapInArrow(lambda batches: batches, "id long").count()
    except FlowError as error:
        return DoctorFinding("start", "fail", error.what, error.next_step)
    except Exception as error:
        from ematix_flow.engine.spark.error_translation import translate_spark_error

        failure = translate_spark_error(error, what="a first job")
        return DoctorFinding("start", "fail", failure.what, failure.next_step)
    job = time.monotonic() - up
    detail = f"{settings.master}: session in {up - began:.1f} s, a first job of {rows} rows in {job:.1f} s"
    return DoctorFinding("start", "ok", mask(detail))


def _format_size(count: int) -> str:
    for unit, width in (("GB", 30), ("MB", 20)):
        if count >= 1 << width:
            return f"{count / (1 << width):.1f} {unit}"
    return f"{count >> 10} kB"
