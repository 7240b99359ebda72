"""The command and the environment that start Spark's Java process.

A local engine starts Java directly. A cluster engine uses ``spark-submit``, so that the site's
``spark-env.sh`` and defaults apply.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from ematix_flow.engine.jvm import class_archive, java_options, java_process
from ematix_flow.engine.jvm.java_runtime import find_java
from ematix_flow.engine.spark.session_conf import LOOPBACK, driver_memory
from ematix_flow.engine.spark.settings import EngineSettings


def local_launch(
    settings: EngineSettings, groups: frozenset[str], jars: Sequence[Path]
) -> tuple[list[str], dict[str, str], class_archive.ClassArchive | None]:
    java = find_java()
    added = settings.conf.get("spark.driver.extraClassPath", "").split(os.pathsep)
    classes = [*java_process.class_path(jars, os.environ), *(Path(entry) for entry in added if entry)]
    made = class_archive.archive_for(java, classes)
    plain = class_archive.archive_for(java, java_process.class_path((), {}))
    if class_archive.archive_mode() == "sync":
        class_archive.train_now(made, sorted(groups))
    options = java_options.local_options(driver_memory(settings)[0], settings.purpose)
    options += class_archive.archive_options(made, fallback=plain)
    command = java_process.local_command(java, options)
    env = _environment(str(java.home))
    env["PYSPARK_PYTHON"] = env["PYSPARK_DRIVER_PYTHON"] = sys.executable
    env["CLASSPATH"] = os.pathsep.join(str(entry) for entry in classes)
    env |= {"SPARK_LOCAL_IP": LOOPBACK, "SPARK_LOCAL_HOSTNAME": LOOPBACK}
    # With it workers would import PySpark from a zip file, uncompiled and slower.
    env.pop("SPARK_HOME", None)
    return command, env, made


def cluster_launch(
    conf: Mapping[str, str], jars: Sequence[Path], scratch: Path
) -> tuple[list[str], dict[str, str]]:
    """The ``spark-submit`` command. The site's defaults apply to all other settings."""
    home = java_process.spark_home()
    at_launch = {
        "spark.driver.memory": conf["spark.driver.memory"],
        "spark.driver.extraJavaOptions": " ".join([java_options.UTC_CLOCK, *java_options.log_options()]),
    }
    if jars:
        at_launch["spark.jars"] = ",".join(jar.as_uri() for jar in jars)
    properties = scratch / "launch.conf"
    properties.write_text("".join(f"{key}={_escape_property(value)}\n" for key, value in at_launch.items()))
    script = home / "bin" / ("spark-submit.cmd" if os.name == "nt" else "spark-submit")
    command = [str(script), "--load-spark-defaults", "--properties-file", str(properties)]
    command += ["--master", conf["spark.master"], "pyspark-shell"]
    env = _environment(str(find_java().home))
    env.setdefault("PYSPARK_PYTHON", sys.executable)
    env["SPARK_HOME"] = str(home)
    if conf.get("spark.driver.host") == LOOPBACK:
        env["SPARK_LOCAL_IP"] = LOOPBACK
    return command, env


def _environment(java_home: str) -> dict[str, str]:
    ignored = ("PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET", "PYSPARK_SUBMIT_ARGS", "SPARK_REMOTE")
    env = {name: value for name, value in os.environ.items() if name not in ignored}
    return {**env, "JAVA_HOME": java_home}


def _escape_property(value: str) -> str:
    """The value escaped for a Java properties file."""
    return value.replace("\\", "\\\\").replace("\n", "\\n")
