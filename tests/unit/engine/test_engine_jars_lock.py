"""The lock of connector jars, the state of the cache, and which mirror is used."""

from __future__ import annotations

import hashlib
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from ematix_flow.engine.jvm import ivy, jars
from ematix_flow.engine.jvm.jars import JarArtifact, JarLock, jar_lock, jar_session_conf, jar_status, jars_for
from ematix_flow.errors import JarsUnavailable, UnknownName


def lock_of(content: bytes) -> JarLock:
    digest = hashlib.sha256(content).hexdigest()
    artifact = JarArtifact("demo", "org.example", "demo", "1.0", len(content), digest)
    return JarLock("4.1.3", (artifact,), {"demo": "a demo"}, {})


def test_every_artifact_is_pinned_with_a_checksum_and_a_known_group() -> None:
    lock = jar_lock()
    assert set(lock.groups) >= {"kafka", "delta", "iceberg", "s3", "avro"}
    for artifact in lock.artifacts:
        assert re.fullmatch(r"[0-9a-f]{64}", artifact.sha256)
        assert artifact.backend in lock.groups
        assert artifact.size > 0
    files = [artifact.file for artifact in lock.artifacts]
    assert len(set(files)) == len(files)


def test_the_lock_is_for_the_spark_that_is_installed() -> None:
    from importlib.metadata import version

    assert jar_lock().spark == version("pyspark")


def test_an_unknown_group_gets_a_did_you_mean() -> None:
    with pytest.raises(UnknownName, match="Did you mean 'kafka'"):
        jar_lock().artifacts_of(["kafak"])


def test_the_extensions_of_two_groups_add_up() -> None:
    conf = jar_session_conf(["iceberg", "delta", "avro"])
    assert len(conf["spark.sql.extensions"].split(",")) == 2
    assert conf["spark.sql.catalog.spark_catalog"].endswith("DeltaCatalog")


def test_no_group_needs_no_jar_and_no_network() -> None:
    assert jars_for([], env={}) == []


def test_the_status_tells_what_is_there_and_whether_it_is_whole(tmp_path: Path) -> None:
    env, lock = {"EMATIX_FLOW_CACHE": str(tmp_path)}, lock_of(b"jar")
    path = tmp_path / "jars" / "demo-1.0.jar"
    assert [s.present for s in jar_status(env=env, lock=lock)] == [False]
    path.write_bytes(b"jax")
    assert [s.present for s in jar_status(env=env, lock=lock)] == [True]
    assert [s.present for s in jar_status(env=env, lock=lock, verify=True)] == [False]
    path.write_bytes(b"jar")
    assert [s.present for s in jar_status(env=env, lock=lock, verify=True)] == [True]
    path.write_bytes(b"j")
    assert [s.present for s in jar_status(env=env, lock=lock)] == [False]


def test_offline_without_the_jars_says_how_to_fetch_them(tmp_path: Path) -> None:
    env = {"EMATIX_FLOW_CACHE": str(tmp_path), "EMATIX_FLOW_OFFLINE": "1"}
    with pytest.raises(JarsUnavailable) as error:
        jars_for(["demo"], env=env, lock=lock_of(b"jar"))
    assert "org.example:demo:1.0" in error.value.what
    assert "flow jars fetch demo" in (error.value.next_step or "")


def test_offline_with_the_jars_is_fine(tmp_path: Path) -> None:
    env = {"EMATIX_FLOW_CACHE": str(tmp_path), "EMATIX_FLOW_OFFLINE": "1"}
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "demo-1.0.jar").write_bytes(b"jar")
    assert jars_for(["demo"], env=env, lock=lock_of(b"jar")) == [tmp_path / "jars" / "demo-1.0.jar"]


MAVEN = """<settings xmlns="http://maven.apache.org/SETTINGS/1.0.0"><mirrors>
  <mirror><id>other</id><url>http://other.example/</url><mirrorOf>internal</mirrorOf></mirror>
  <mirror><id>m</id><url> http://mirror.example/maven2 </url><mirrorOf>{of}</mirrorOf></mirror>
</mirrors></settings>""".replace("maven.apache", "maven.example")


@pytest.mark.parametrize("mirrored", ["central", "*", "external:*", "central,snapshots"])
def test_mavens_mirror_of_the_central_repository_is_used(tmp_path: Path, mirrored: str) -> None:
    (tmp_path / ".m2").mkdir()
    (tmp_path / ".m2" / "settings.xml").write_text(MAVEN.format(of=mirrored))
    assert ivy.maven_mirror({"HOME": str(tmp_path)}) == "http://mirror.example/maven2"


@pytest.mark.parametrize("mirrored", ["snapshots", "*,!central"])
def test_mavens_mirror_of_something_else_is_not(tmp_path: Path, mirrored: str) -> None:
    (tmp_path / ".m2").mkdir()
    (tmp_path / ".m2" / "settings.xml").write_text(MAVEN.format(of=mirrored))
    assert ivy.maven_mirror({"HOME": str(tmp_path)}) is None


def test_broken_maven_settings_are_no_mirror(tmp_path: Path) -> None:
    (tmp_path / ".m2").mkdir()
    (tmp_path / ".m2" / "settings.xml").write_text("<settings")
    assert ivy.maven_mirror({"HOME": str(tmp_path)}) is None
    assert ivy.maven_mirror({}) is None


def test_a_settings_file_of_ivy_wins_over_a_mirror(tmp_path: Path) -> None:
    env = {"EMATIX_FLOW_IVY_SETTINGS": "/etc/ivy.xml", "DEFAULT_ARTIFACT_REPOSITORY": "http://x/"}
    assert ivy.settings_file(env, tmp_path) == Path("/etc/ivy.xml")
    assert ivy.settings_file({}, tmp_path) is None


def test_a_mirrors_address_is_written_as_data(tmp_path: Path) -> None:
    address = 'http://mirror.example/?a=1&b="<x>"'
    settings = ivy.settings_file({"DEFAULT_ARTIFACT_REPOSITORY": address}, tmp_path)
    assert settings is not None
    resolver = ET.parse(settings).find("resolvers/ibiblio")
    assert resolver is not None
    assert resolver.get("root") == address


def test_the_lock_file_is_data_of_the_package() -> None:
    assert jars.LOCK_FILE.is_file()
