"""The options of Spark's Java process: memory, garbage collector, compilers, time zone, modules and log.

Those of the class-data archive are in `class_archive`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

LOG_CONFIGURATION = Path(__file__).with_name("log4j2.properties")
_SMALLEST_MEMORY = 1 << 30
_LARGEST_MEMORY = 24 << 30  # above 32 GB Java's references double in size

# The options of Spark's launcher, without the incubator module that only MLlib uses.
_OPENED_PACKAGES = (
    "java.base/java.lang",
    "java.base/java.lang.invoke",
    "java.base/java.lang.reflect",
    "java.base/java.io",
    "java.base/java.net",
    "java.base/java.nio",
    "java.base/java.util",
    "java.base/java.util.concurrent",
    "java.base/java.util.concurrent.atomic",
    "java.base/jdk.internal.ref",
    "java.base/sun.nio.ch",
    "java.base/sun.nio.cs",
    "java.base/sun.security.action",
    "java.base/sun.util.calendar",
    "java.security.jgss/sun.security.krb5",
)
MODULE_OPTIONS = (
    "-XX:+IgnoreUnrecognizedVMOptions",
    *(f"--add-opens={package}=ALL-UNNAMED" for package in _OPENED_PACKAGES),
    "-Djdk.reflect.useDirectMethodHandle=false",
    "-Dio.netty.tryReflectionSetAccessible=true",
    "-Dio.netty.allocator.type=pooled",
    "-Dio.netty.handler.ssl.defaultEndpointVerificationAlgorithm=NONE",
    "--enable-native-access=ALL-UNNAMED",
)

# some readers (ORC) use the JVM's time zone, not the session's
UTC_CLOCK = "-Duser.timezone=UTC"


def local_options(memory: str, purpose: Literal["short", "long"]) -> list[str]:
    """The options of a local Java, for a memory such as ``4g``."""
    return [
        f"-Xmx{memory}",
        "-XX:-UsePerfData",
        UTC_CLOCK,
        *MODULE_OPTIONS,
        *log_options(),
        *gc_and_jit_options(purpose),
    ]


def default_memory(machine_bytes: int) -> str:
    """The memory of Spark's driver on a machine with so many bytes: half of them, 1 GB to 24 GB."""
    return f"{min(max(machine_bytes // 2, _SMALLEST_MEMORY), _LARGEST_MEMORY) >> 20}m"


def gc_and_jit_options(purpose: Literal["short", "long"]) -> list[str]:
    options = ["-XX:+UseParallelGC"]
    if purpose == "short":
        # With C1 alone Java keeps 48 MB of code: Spark fills that in a minute and is compiled over and over
        options += ["-XX:TieredStopAtLevel=1", "-XX:ReservedCodeCacheSize=240m"]
    return options


def log_options() -> list[str]:
    level = os.environ.get("EMATIX_FLOW_SPARK_LOG_LEVEL", "warn")
    return [f"-Dlog4j2.configurationFile={LOG_CONFIGURATION.as_uri()}", f"-Dematix_flow.log.level={level}"]
