"""When a class-data archive is used, made or left alone. Java itself is tried in the end-to-end tests."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from ematix_flow.engine.jvm import class_archive
from ematix_flow.engine.jvm.class_archive import (
    ClassArchive,
    archive_for,
    archive_mode,
    archive_options,
    train_in_background,
)
from ematix_flow.engine.jvm.java_runtime import JavaRuntime
from ematix_flow.errors import ConfigError


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return {"EMATIX_FLOW_CACHE": str(tmp_path / "cache")}


@pytest.fixture
def java(tmp_path: Path) -> JavaRuntime:
    home = tmp_path / "jdk"
    (home / "lib" / "server").mkdir(parents=True)
    (home / "lib" / "server" / "classes.jsa").touch()
    return JavaRuntime(home, "17.0.1", "a test")


@pytest.fixture
def jar(tmp_path: Path) -> Path:
    path = tmp_path / "spark.jar"
    path.write_bytes(b"one")
    return path


def test_it_belongs_to_one_java_and_one_set_of_jars(
    java: JavaRuntime, jar: Path, tmp_path: Path, env: dict[str, str]
) -> None:
    first = archive_for(java, [jar], env)
    assert archive_for(java, [jar], env) == first
    assert archive_for(JavaRuntime(java.home, "17.0.2", ""), [jar], env).path != first.path
    other = tmp_path / "other.jar"
    other.touch()
    assert archive_for(java, [jar, other], env).path != first.path
    jar.write_bytes(b"another")
    assert archive_for(java, [jar], env).path != first.path


def test_a_java_without_a_base_archive_gets_one(java: JavaRuntime, jar: Path, env: dict[str, str]) -> None:
    assert archive_for(java, [jar], env).base is None
    (java.home / "lib" / "server" / "classes.jsa").unlink()
    made = archive_for(java, [jar], env)
    assert made.base is not None
    made.path.touch()
    assert not made.is_ready
    made.base.touch()
    assert made.is_ready
    assert archive_options(made, env)[1] == f"-XX:SharedArchiveFile={made.base}{os.pathsep}{made.path}"


def test_it_is_used_only_when_it_is_there(java: JavaRuntime, jar: Path, env: dict[str, str]) -> None:
    made = archive_for(java, [jar], env)
    assert archive_options(made, env) == []
    made.path.touch()
    assert archive_options(made, env) == ["-Xshare:auto", f"-XX:SharedArchiveFile={made.path}"]
    assert archive_options(made, {**env, "EMATIX_FLOW_CDS": "off"}) == []


def test_that_of_spark_alone_serves_until_the_one_with_more_jars_is_made(
    java: JavaRuntime, jar: Path, tmp_path: Path, env: dict[str, str]
) -> None:
    more = tmp_path / "more.jar"
    more.touch()
    plain, own = archive_for(java, [jar], env), archive_for(java, [jar, more], env)
    assert archive_options(own, env, fallback=plain) == []
    plain.path.touch()
    assert archive_options(own, env, fallback=plain)[1] == f"-XX:SharedArchiveFile={plain.path}"
    own.path.touch()
    assert archive_options(own, env, fallback=plain)[1] == f"-XX:SharedArchiveFile={own.path}"


def test_training_records_to_the_path_it_is_given(java: JavaRuntime, jar: Path, env: dict[str, str]) -> None:
    made = archive_for(java, [jar], env)
    options = archive_options(made, {**env, "EMATIX_FLOW_CDS": "record:/x/y.jsa"})
    assert options == ["-XX:ArchiveClassesAtExit=/x/y.jsa"]


def test_an_unknown_mode_gets_a_did_you_mean() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'auto'"):
        archive_mode({"EMATIX_FLOW_CDS": "atuo"})


@pytest.mark.parametrize("mode", ["off", "sync"])
def test_nothing_is_made_in_the_background_unless_the_mode_is_auto(
    java: JavaRuntime, jar: Path, env: dict[str, str], mode: str
) -> None:
    assert not train_in_background(archive_for(java, [jar], env), [], {**env, "EMATIX_FLOW_CDS": mode})


def test_nothing_is_made_in_the_background_where_ci_is_set(
    java: JavaRuntime, jar: Path, env: dict[str, str]
) -> None:
    assert not train_in_background(archive_for(java, [jar], env), [], {**env, "CI": "true"})


def test_nothing_is_made_while_another_process_makes_it_or_after_a_failure(
    java: JavaRuntime, jar: Path, env: dict[str, str]
) -> None:
    made = archive_for(java, [jar], env)
    with made.lock():
        assert ClassArchive(made.path, made.base).is_being_made
        assert not train_in_background(made, [], env)
    made.remember_failure("Java was killed")
    assert made.failed_recently
    assert not train_in_background(made, [], env)


def test_a_failure_is_forgotten_after_a_day(java: JavaRuntime, jar: Path, env: dict[str, str]) -> None:
    made = archive_for(java, [jar], env)
    made.remember_failure("Java was killed")
    yesterday = time.time() - 25 * 3600
    os.utime(made.path.with_suffix(".failed"), (yesterday, yesterday))
    assert not made.failed_recently


def test_archives_that_nobody_uses_are_removed(env: dict[str, str]) -> None:
    folder = class_archive.cache_subfolder("archives", env)
    for number in range(6):
        path = folder / f"spark-java17-{number}.jsa"
        path.touch()
        os.utime(path, (time.time() - number * 3600,) * 2)
    os.utime(folder / "spark-java17-1.jsa", (time.time() - 60 * 86400,) * 2)
    (folder / "java-21-base.jsa").touch()
    class_archive.delete_old_archives(env)
    left = {path.name for path in folder.glob("*.jsa")}
    assert left == {"java-21-base.jsa", *(f"spark-java17-{n}.jsa" for n in (0, 2, 3, 4))}
