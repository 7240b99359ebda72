"""Jars through the real Ivy, from a mirror that is a folder in Maven's layout."""

from __future__ import annotations

import hashlib
import os
import subprocess
import zipfile
from pathlib import Path

import pytest

from ematix_flow.engine.jvm.jars import JarArtifact, JarLock, fetch_jars, jar_status, jars_for
from ematix_flow.engine.jvm.java_options import MODULE_OPTIONS
from ematix_flow.engine.jvm.java_process import spark_home
from ematix_flow.engine.jvm.java_runtime import find_java
from ematix_flow.errors import JarsUnavailable

POM = """<project><modelVersion>4.0.0</modelVersion><groupId>org.example</groupId>
<artifactId>{name}</artifactId><version>1.0</version>
<dependencies><dependency><groupId>org.example</groupId><artifactId>unwanted</artifactId><version>9</version>
</dependency></dependencies></project>"""


@pytest.fixture
def mirror(tmp_path: Path) -> Path:
    return tmp_path / "mirror"


@pytest.fixture
def env(tmp_path: Path, mirror: Path) -> dict[str, str]:
    return {
        **os.environ,
        "EMATIX_FLOW_CACHE": str(tmp_path / "cache"),
        "DEFAULT_ARTIFACT_REPOSITORY": mirror.as_uri() + "/",
    }


def publish(mirror: Path, *names: str) -> JarLock:
    """Put jars into the mirror and pin them."""
    artifacts = []
    for name in names:
        folder = mirror / "org" / "example" / name / "1.0"
        folder.mkdir(parents=True)
        (folder / f"{name}-1.0.pom").write_text(POM.format(name=name))
        jar = folder / f"{name}-1.0.jar"
        with zipfile.ZipFile(jar, "w") as archive:
            archive.writestr("about.txt", name)
        digest = hashlib.sha256(jar.read_bytes()).hexdigest()
        artifacts.append(JarArtifact("demo", "org.example", name, "1.0", jar.stat().st_size, digest))
    return JarLock("4.1.3", tuple(artifacts), {"demo": "for a test"}, {})


def test_missing_jars_are_fetched_checked_and_cached_without_their_dependencies(
    mirror: Path, env: dict[str, str], tmp_path: Path
) -> None:
    lock = publish(mirror, "one", "two")
    steps: list[tuple[str, int, int]] = []
    fetch_jars(
        ["demo"], lambda artifact, done, total: steps.append((artifact.name, done, total)), env=env, lock=lock
    )
    assert steps == [("one", 1, 2), ("two", 2, 2)]
    paths = jars_for(["demo"], env=env, lock=lock)
    assert [path.name for path in paths] == ["one-1.0.jar", "two-1.0.jar"]
    assert all(s.present for s in jar_status(verify=True, env=env, lock=lock))
    assert {path.name for path in (tmp_path / "cache" / "jars").iterdir()} == {
        "one-1.0.jar",
        "two-1.0.jar",
        ".lock",
    }
    # now from the cache alone
    (mirror / "org").rename(mirror / "gone")
    assert jars_for(["demo"], env={**env, "EMATIX_FLOW_OFFLINE": "1"}, lock=lock) == paths


def test_another_file_under_the_same_name_is_refused_and_not_kept(
    mirror: Path, env: dict[str, str], tmp_path: Path
) -> None:
    lock = publish(mirror, "one")
    with zipfile.ZipFile(mirror / "org/example/one/1.0/one-1.0.jar", "w") as archive:
        archive.writestr("about.txt", "evil")
    with pytest.raises(JarsUnavailable, match="SHA-256") as error:
        jars_for(["demo"], env=env, lock=lock)
    assert "thrown away" in str(error.value)
    assert [path.name for path in (tmp_path / "cache" / "jars").iterdir()] == [".lock"]


def test_a_jar_that_the_mirror_does_not_have_is_named_with_the_next_step(
    mirror: Path, env: dict[str, str]
) -> None:
    lock = publish(mirror, "one")
    (mirror / "org").rename(mirror / "gone")
    with pytest.raises(JarsUnavailable) as error:
        jars_for(["demo"], env=env, lock=lock)
    assert "org.example:one:1.0" in error.value.what
    assert "not found" in error.value.what
    assert "flow jars fetch demo" in (error.value.next_step or "")


def test_java_gets_the_options_that_sparks_own_launcher_gives_it() -> None:
    """They are written down here to save the launcher's start; they must not drift from Spark's."""
    home = spark_home()
    answer = subprocess.run(
        [
            find_java().executable,
            "-cp",
            f"{home}/jars/*",
            "org.apache.spark.launcher.Main",
            "org.apache.spark.deploy.SparkSubmit",
            "pyspark-shell",
        ],
        capture_output=True,
        check=True,
        env={**os.environ, "SPARK_HOME": str(home), "SPARK_SCALA_VERSION": "2.13"},
    )
    command = answer.stdout.decode().replace("\n", "\0").split("\0")
    given = [word for word in command if word.startswith("-") and word not in ("-cp", "-Xmx1g")]
    left_out = {
        "--add-modules=jdk.incubator.vector",  # for MLlib, and Java warns of it
        "-Dderby.connection.requireAuthentication=false",  # for Hive's metastore
    }
    assert [word for word in given if word not in left_out] == list(MODULE_OPTIONS)
