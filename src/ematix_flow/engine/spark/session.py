"""The one Spark session of this process: started at first use, reused, stopped at exit.

Only this module and `interrupts` use Py4J, ``SparkContext`` and other things that Spark Connect does not
have. A local start overlaps: Java starts and builds its session while Python imports PySpark.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import logging
import os
import shutil
import signal
import sys
import sysconfig
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ematix_flow.config.working_folder import working_folder
from ematix_flow.engine.jvm import class_archive, java_process
from ematix_flow.engine.jvm.cache_folder import drop_old_logs, spark_log
from ematix_flow.engine.jvm.jars import jars_for
from ematix_flow.engine.spark import spark_users
from ematix_flow.engine.spark.cluster_reachability import require_reachable
from ematix_flow.engine.spark.error_translation import translate_spark_error
from ematix_flow.engine.spark.interrupts import handle_interrupts, restore_interrupts
from ematix_flow.engine.spark.launch import cluster_launch, local_launch
from ematix_flow.engine.spark.package_zip import build_package_zip
from ematix_flow.engine.spark.scratch_folder import create_scratch_folder
from ematix_flow.engine.spark.session_conf import SQL_CONF, describe_session, session_conf
from ematix_flow.engine.spark.settings import EngineSettings
from ematix_flow.errors import EngineError, FlowError

if TYPE_CHECKING:
    from py4j.java_gateway import JavaGateway  # type: ignore[import-untyped]
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

__all__ = ["EngineSettings", "describe_session", "spark_session", "stop_session"]


@dataclass
class _RunningSession:
    settings: EngineSettings
    groups: frozenset[str]
    session: SparkSession
    java: java_process.JavaProcess | None
    scratch: Path | None
    archive: class_archive.ClassArchive | None
    owner: int

    @property
    def is_alive(self) -> bool:
        """Whether it can still be used: Java runs, and the program has not stopped the session."""
        return self.java is None or (self.java.is_alive and self.session.sparkContext._jsc is not None)

    @property
    def context(self) -> SparkContext | None:
        return None if self.java is None else self.session.sparkContext


_lock = spark_users.lock
_running: _RunningSession | None = None
_EXIT_SECONDS = 2.0


def spark_session(settings: EngineSettings, *, jar_groups: Sequence[str] = ()) -> SparkSession:
    """The session for these settings, with at least these groups of jars.

    Other settings or more jars restart a running session. The restart waits for the runs that use Spark, and
    fails while a stream, a job or a query is active: see `usage`.
    """
    global _running
    with _lock:
        wanted = frozenset(jar_groups)
        _refuse_in_a_forked_child()
        spark_users.wait_for_others(
            _restart_reason(settings, wanted), lambda: _must_restart(settings, wanted)
        )
        if _running is not None and not _must_restart(settings, wanted) and _running.is_alive:
            _share_import_path(_running)
            spark_users.hold_session()
            return _running.session
        groups = wanted
        if _running is not None:
            if _launch_settings(_running.settings) == _launch_settings(settings):
                groups |= _running.groups
            if _running.is_alive:
                _refuse_while_busy(_running, _restart_reason(settings, wanted))
        require_reachable(settings.master)  # before the running session ends
        running, _running = _running, None
        _end_session(running, train=False)
        _running = _connect_session(settings, groups) if settings.is_connect else _start(settings, groups)
        spark_users.hold_session()
        return _running.session


def _must_restart(settings: EngineSettings, groups: frozenset[str]) -> bool:
    """Whether the running session has other settings or fewer jars."""
    if _running is None or not _running.is_alive:
        return False
    return _launch_settings(_running.settings) != _launch_settings(settings) or not groups <= _running.groups


def _restart_reason(settings: EngineSettings, groups: frozenset[str]) -> str:
    """The reason for a restart."""
    if _running is None or _launch_settings(_running.settings) != _launch_settings(settings):
        return "other engine settings"
    return f"the jars of {', '.join(sorted(groups - _running.groups))}"


def stop_session() -> None:
    """Stop Spark, if it runs, and wait until its Java process has ended."""
    global _running
    with _lock:
        running, _running = _running, None
        _end_session(running)


def cancel_jobs() -> bool:
    """Cancel the running jobs. Their callers get an error. False if Spark does not run."""
    running = _running  # without the lock, which a start of Spark holds for long
    context = running.context if running is not None else None
    if context is not None:
        with contextlib.suppress(Exception):  # Java may have ended: then no job runs
            context.cancelAllJobs()
    return context is not None


def _launch_settings(settings: EngineSettings) -> tuple[object, ...]:
    return (
        settings.master,
        settings.shuffle_partitions,
        settings.memory,
        tuple(sorted(settings.conf.items())),
        settings.purpose,
    )


def _refuse_in_a_forked_child() -> None:
    if _running is not None and _running.owner != os.getpid():
        raise EngineError(
            "Spark was started before this process was forked, and belongs to its parent",
            next_step='start Spark in the child only, or start processes with the method "spawn"',
        )


def _refuse_while_busy(running: _RunningSession, wanted: str) -> None:
    """Also counts users that did not register: jobs, and queries, which have no job while they wait."""
    context = running.context
    if context is None:
        return
    if context.statusTracker().getActiveJobsIds():
        raise spark_users.spark_in_use_error(["jobs that are running"], wanted)
    queries = [query.name or str(query.id) for query in running.session.streams.active]
    if queries:
        raise spark_users.spark_in_use_error([f"the query {name!r}" for name in queries], wanted)


# ---------------------------------------------------------------------- start


def _start(settings: EngineSettings, groups: frozenset[str]) -> _RunningSession:
    """Start a session that this process drives, on this machine or on a cluster."""
    _refuse_a_foreign_session()
    os.environ.pop("SPARK_CONNECT_MODE_ENABLED", None)  # left by an earlier Connect session
    log = spark_log()
    drop_old_logs()
    jars = jars_for(sorted(groups))
    scratch = create_scratch_folder()
    made: class_archive.ClassArchive | None = None
    java: java_process.JavaProcess | None = None
    try:
        conf = session_conf(settings, groups, scratch)
        if settings.is_local:
            command, env, made = local_launch(settings, groups, jars)
        else:
            command, env = cluster_launch(conf, jars, scratch)
        java = java_process.start_java(command, env, log, scratch)
        session = _attach_pyspark(java, conf, env["PYSPARK_PYTHON"])
    except BaseException as error:
        if java is not None:
            java.close(patience=1)  # it has nothing to finish
        _drop_gateway()
        shutil.rmtree(scratch, ignore_errors=True)
        if isinstance(error, FlowError) or not isinstance(error, Exception):
            raise
        raise translate_spark_error(error, what="starting Spark") from error
    running = _RunningSession(settings, groups, session, java, scratch, made, os.getpid())
    _share_import_path(running)
    if not settings.is_local:
        session.sparkContext.addPyFile(str(build_package_zip()))
    return running


def _refuse_a_foreign_session() -> None:
    pyspark = sys.modules.get("pyspark")
    if pyspark is not None and getattr(pyspark.SparkContext, "_active_spark_context", None) is not None:
        raise EngineError(
            "this process already has a Spark session that it did not get from here",
            next_step="stop it first (spark.stop()), or run the pipeline in a separate process",
        )


class _SessionBoot(threading.Thread):
    """Builds Java's half of the session over a plain Py4J connection while PySpark is imported."""

    def __init__(self, java: java_process.JavaProcess, conf: Mapping[str, str]) -> None:
        super().__init__(name="spark-boot", daemon=True)
        self.java, self.conf = java, conf
        self.address: tuple[int, str] | None = None
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.address = self.java.wait_for_connection()
            self.build(*self.address)
        except BaseException as error:
            self.error = error

    def build(self, port: int, secret: str) -> None:
        from py4j.clientserver import (  # type: ignore[import-untyped]
            ClientServer,
            JavaParameters,
            PythonParameters,
        )

        client = ClientServer(
            java_parameters=JavaParameters(port=port, auth_token=secret),
            python_parameters=PythonParameters(port=0, eager_load=False),
        )
        try:
            spark = client.jvm.org.apache.spark
            conf = spark.SparkConf()
            for key, value in self.conf.items():
                conf.set(key, value)
            context = spark.api.java.JavaSparkContext(conf)
            session = spark.sql.classic.SparkSession(context.sc(), client.jvm.java.util.HashMap())
            session.sessionState()  # builds it now instead of at first use
            spark.sql.classic.SparkSession.setDefaultSession(session)
        except Exception as error:
            # read the text now, before the connection closes
            raise translate_spark_error(error, what="starting Spark") from None
        finally:
            client.close()

    def wait_until_built(self) -> tuple[int, str]:
        self.join()
        if self.error is not None:
            raise self.error
        assert self.address is not None
        return self.address


def _attach_pyspark(
    java: java_process.JavaProcess, conf: Mapping[str, str], worker_python: str
) -> SparkSession:
    boot = _SessionBoot(java, conf)
    boot.start()
    # The slow imports: PySpark's converters import pandas and more at their first use.
    importlib.import_module("pyspark.sql")
    importlib.import_module("pyspark.testing.utils")
    _silence_loggers()
    link = _create_gateway(*boot.wait_until_built())
    before = signal.getsignal(signal.SIGINT)
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    spark: Any = link.jvm.org.apache.spark
    context_in_java = spark.api.java.JavaSparkContext.fromSparkContext(spark.SparkContext.getOrCreate())
    conf_in_java = SparkConf(_jconf=context_in_java.getConf())
    with _temporary_environment({"PYSPARK_PYTHON": worker_python}):
        context = SparkContext(conf=conf_in_java, gateway=link, jsc=context_in_java)
    # When Java ends, this server would print a traceback; the callers get the error anyway.
    context._accumulatorServer.handle_error = _do_nothing  # type: ignore[method-assign]
    handle_interrupts(context, before)
    return SparkSession(context)


def _do_nothing(*arguments: object, **named: object) -> None:
    pass


def _silence_loggers() -> None:
    """Stop PySpark and Py4J from writing raised errors to standard error."""
    from py4j import java_gateway  # type: ignore[import-untyped]
    from pyspark.logger import PySparkLogger

    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL + 1)
    # It logs a lost connection and Ctrl-C with the root logger: make it use its own.
    java_gateway.logging = java_gateway.logger


def _create_gateway(port: int, secret: str) -> JavaGateway:
    """PySpark's gateway object for a Java process that already runs."""
    from pyspark.java_gateway import launch_gateway

    variables = {"PYSPARK_GATEWAY_PORT": str(port), "PYSPARK_GATEWAY_SECRET": secret}
    with _temporary_environment(variables):
        return launch_gateway()  # type: ignore[no-untyped-call]


@contextlib.contextmanager
def _temporary_environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables within the block. PySpark reads some values only from there."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _connect_session(settings: EngineSettings, groups: frozenset[str]) -> _RunningSession:
    """Open a session on a Spark Connect server."""
    from pyspark.sql import SparkSession

    _silence_loggers()
    try:
        session = SparkSession.builder.remote(settings.master).getOrCreate()
        conf = {**SQL_CONF, **settings.conf}
        if settings.shuffle_partitions is not None:
            conf["spark.sql.shuffle.partitions"] = str(settings.shuffle_partitions)
        for key, value in conf.items():
            session.conf.set(key, value)
        session.addArtifacts(str(build_package_zip()), pyfile=True)
    except Exception as error:
        os.environ.pop("SPARK_CONNECT_MODE_ENABLED", None)
        raise translate_spark_error(error, what=f"connecting to {settings.master}") from error
    # the server has its own jars
    return _RunningSession(settings, groups, session, None, None, None, os.getpid())


# ---------------------------------------------------------------------- while it runs


def _share_import_path(running: _RunningSession) -> None:
    """Let the workers import the same modules as this process: the user's, and this package."""
    context = running.context
    if context is None:
        return
    path = import_path(str(running.scratch))
    if context.environment.get("PYTHONPATH") != path:
        context.environment["PYTHONPATH"] = path


def import_path(scratch: str) -> str:
    """``sys.path`` without the folders that every process of this interpreter has."""
    own = {os.path.realpath(p) for p in sysconfig.get_paths().values()}
    found: dict[str, None] = {}
    for entry in sys.path:
        path = os.path.abspath(working_folder() / entry)
        zipped = os.path.isfile(path) and path.endswith((".zip", ".egg", ".whl"))
        if not (os.path.isdir(path) or zipped) or path.startswith(scratch):
            continue
        if os.path.realpath(path) not in own and not path.endswith("lib-dynload"):
            found[path] = None
    return os.pathsep.join(found)


# ---------------------------------------------------------------------- end


def _end_session(running: _RunningSession | None, train: bool = True) -> None:
    if running is None:
        return
    if running.owner != os.getpid():
        return  # a forked child: the session belongs to its parent
    try:
        if running.is_alive:
            with contextlib.suppress(Exception):  # Java may end meanwhile; it is closed below
                running.session.stop()
    finally:
        if running.java is not None:
            recording = class_archive.archive_mode().startswith(class_archive.RECORD)
            running.java.close(patience=class_archive.TRAINING_SECONDS if recording else 10)
            _drop_gateway()
            restore_interrupts()
        os.environ.pop("SPARK_CONNECT_MODE_ENABLED", None)
        if running.scratch is not None:
            shutil.rmtree(running.scratch, ignore_errors=True)
    if train and running.archive is not None:
        class_archive.train_in_background(running.archive, sorted(running.groups))


def _drop_gateway() -> None:
    """PySpark keeps the link to its Java process forever; a new process needs a new gateway."""
    if "pyspark" not in sys.modules:
        return
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    link = SparkContext._gateway
    if link is not None:
        link.close()
    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = SparkSession._activeSession = None


def _at_exit() -> None:
    """Stop Spark. If a daemon thread is starting Spark and holds the lock, kill Java instead."""
    if not _lock.acquire(timeout=_EXIT_SECONDS):
        starting = java_process.last_process()
        if starting is not None:
            starting.kill()
        return
    try:
        stop_session()
    finally:
        _lock.release()


atexit.register(_at_exit)
