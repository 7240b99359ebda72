"""The settings of a session and their reasons: Spark's settings and the driver's memory.

Values only; `session` applies them, and ``preview`` and ``flow doctor`` show them by `describe_session`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from ematix_flow.engine.jvm import class_archive, jars
from ematix_flow.engine.jvm.java_options import UTC_CLOCK, default_memory
from ematix_flow.engine.spark.machine_resources import memory_bytes
from ematix_flow.engine.spark.settings import EngineSettings
from ematix_flow.plan.decisions import Decision
from ematix_flow.spec.secret_fields import mask_field
from ematix_probe.redaction import mask

LOOPBACK = "127.0.0.1"

# What Spark hides in its listings, plans, event logs and pages, by a setting's name or by its value. Its own
# rule does not know a catalog's credential or header, a key in PEM form, nor a password within an address.
HIDDEN = (
    r"(?i)secret|password|passwd|token|(?:access|api)[._-]?key|credential|authorization|"
    r"jaas[._-]?config|keystore[._-]?key\b|private[._-]?key|-----BEGIN [A-Z ]*PRIVATE KEY|"
    r"://[^/?#\s:@]*:[^/?#\s]+@"
)

# Set on every Spark session, also on a Connect server.
SQL_CONF = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # It would remove the metrics of a query together with a part of its plan that yields no rows
    "spark.sql.adaptive.optimizer.excludedRules": (
        "org.apache.spark.sql.execution.adaptive.AQEPropagateEmptyRelation"
    ),
    # Spark's default, INT96, is read as another time by others where it is far from today
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}


def driver_memory(settings: EngineSettings) -> tuple[str, str]:
    """(size, why)"""
    if settings.memory is not None:
        return settings.memory, "[engine] memory"
    return default_memory(memory_bytes()), "half of what this machine has, 1 GB to 24 GB"


def shuffle_partitions(settings: EngineSettings) -> tuple[int, str] | None:
    """(number, why); None leaves it to the cluster."""
    if settings.shuffle_partitions is not None:
        return settings.shuffle_partitions, "[engine] shuffle_partitions"
    if settings.is_local:
        return settings.cores, "one for each core: more only cost time on one machine"
    return None


def session_conf(
    settings: EngineSettings, groups: Iterable[str], scratch: Path, env: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """All settings of a session that this process drives."""
    conf = {
        "spark.app.name": "ematix-flow",
        "spark.master": settings.master,
        "spark.submit.deployMode": "client",
        "spark.ui.enabled": "true" if env.get("EMATIX_FLOW_SPARK_UI", "") not in ("", "0") else "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.warehouse.dir": (scratch / "warehouse").as_uri(),
        "spark.sql.catalogImplementation": "in-memory",
        "spark.driver.memory": driver_memory(settings)[0],
        "spark.redaction.regex": HIDDEN,
        "spark.python.worker.faulthandler.enabled": "true",
        "spark.sql.execution.pyspark.udf.faulthandler.enabled": "true",
        # otherwise each new session of a stream leaves Python processes behind
        "spark.sql.artifact.isolation.enabled": "false",
        **SQL_CONF,
    }
    if not settings.is_local:
        conf["spark.executor.extraJavaOptions"] = UTC_CLOCK
    if settings.is_local and not env.get("SPARK_LOCAL_DIRS"):
        conf["spark.local.dir"] = str(scratch / "local")
    if settings.is_local:
        conf["spark.python.daemon.module"] = "ematix_flow.engine.spark.worker_daemon"
    if settings.is_local or _is_loopback(settings.master):
        conf |= {"spark.driver.host": LOOPBACK, "spark.driver.bindAddress": LOOPBACK}
    partitions = shuffle_partitions(settings)
    if partitions is not None:
        conf["spark.sql.shuffle.partitions"] = str(partitions[0])
    return conf | jars.jar_session_conf(groups) | dict(settings.conf)


def describe_session(settings: EngineSettings, env: Mapping[str, str] = os.environ) -> list[Decision]:
    """The decisions of the session with their reasons. Starts nothing."""
    decisions = [Decision("engine", mask(settings.master), settings.reason)]
    if settings.is_connect:
        decisions.append(Decision("time zone", "UTC", "the same result on every machine"))
        return decisions
    decisions.append(Decision("driver memory", *driver_memory(settings)))
    partitions = shuffle_partitions(settings)
    if partitions is not None:
        decisions.append(Decision("shuffle partitions", str(partitions[0]), partitions[1]))
    if settings.is_local:
        short = settings.purpose == "short"
        decisions.append(
            Decision(
                "compiler",
                "C1 only" if short else "C1 and C2",
                "a short command starts sooner" if short else "a long run earns back better code",
            )
        )
        decisions.append(Decision("garbage collector", "parallel", "the highest throughput on few cores"))
        decisions.append(
            Decision("class-data archive", class_archive.archive_mode(env), "halves Spark's start")
        )
    decisions.append(Decision("time zone", "UTC", "the same result on every machine"))
    decisions.append(Decision("ANSI SQL", "on", "a value that does not fit is an error, not a null"))
    decisions += [
        Decision(key, _mask_secret(key, value), "[engine] conf")
        for key, value in sorted(settings.conf.items())
    ]
    return decisions


def _mask_secret(key: str, value: str) -> str:
    """The value of a setting with its secrets masked. Some values are a secret as a whole."""
    return str(mask_field(key.replace(".", "_").replace("-", "_"), value))


def _is_loopback(master: str) -> bool:
    if not master.startswith("spark://"):
        return False
    host = urlsplit(master.split(",")[0]).hostname or ""
    return host in ("localhost", "::1") or host.startswith("127.")
