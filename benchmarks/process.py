"""One measured process: its marks, its memory, its end. Does not know what the process does."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.datasets import DATA
from benchmarks.machine import REPOSITORY
from benchmarks.process_tree import MemoryWatch

BYTECODE = DATA / "bytecode"


@dataclass(frozen=True)
class Ended:
    """How a process ended. Times are of the machine's monotonic clock."""

    started_at: float
    ended_at: float
    code: int | None  # None: stopped at the limit
    said: str
    memory: tuple[tuple[float, int], ...] = ()  # samples: when, and how many bytes

    @property
    def seconds(self) -> float:
        return self.ended_at - self.started_at

    def peak_bytes(self, until: float | None = None) -> int:
        """The most memory in use at once, until a time or overall."""
        return max((held for at, held in self.memory if until is None or at <= until), default=0)


def measured(
    command: Sequence[str], folder: Path, env: Mapping[str, str], expired: Callable[[float], bool], log: Path
) -> Ended:
    """Run it in ``folder`` and watch it; processes that it leaves running are ended with it.

    ``expired`` gets the time of the start, and is called repeatedly until it returns that the time is over.
    """
    with log.open("wb") as output:
        started_at = time.monotonic()
        process = subprocess.Popen(
            list(command),
            cwd=folder,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        code = None
        try:
            with MemoryWatch(process.pid) as memory:
                while code is None and not expired(started_at):
                    code = _waited(process)
                ended_at = time.monotonic()
        finally:
            _end_group(process)
    return Ended(started_at, ended_at, code, log.read_text(errors="replace"), tuple(memory.samples))


def within(seconds: float) -> Callable[[float], bool]:
    """Expired when it runs longer than that."""
    return lambda started_at: time.monotonic() > started_at + seconds


def environment(state: Path) -> dict[str, str]:
    """This process's own, without the developer's settings; the user's cache is kept."""
    kept = {
        k: v for k, v in os.environ.items() if not k.startswith("EMATIX_FLOW_") or k == "EMATIX_FLOW_CACHE"
    }
    kept.pop("PYTHONDONTWRITEBYTECODE", None)  # users do not compile every library before a load
    path = [str(REPOSITORY / "src"), str(REPOSITORY)]
    return {
        **kept,
        "PYTHONPYCACHEPREFIX": str(BYTECODE),
        "PYTHONPATH": os.pathsep.join(path),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), kept.get("PATH", "")]),
        "EMATIX_FLOW_STATE": str(state),
    }


def compile_libraries(python: Path) -> None:
    """Bytecode of what an interpreter has installed, and of this repository, as an installer creates it."""
    env = environment(BYTECODE)
    asked = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    libraries = subprocess.run(asked, env=env, capture_output=True, text=True, check=True).stdout.strip()
    folders = [libraries, str(REPOSITORY / "src"), str(REPOSITORY / "benchmarks" / "contestants")]
    subprocess.run([str(python), "-m", "compileall", "-q", "-j", "0", *folders], env=env, check=False)


def last_words(said: str) -> str:
    """The line of an output that best explains the failure, without paths of this machine."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    causes = [line for line in lines if re.match(r"(Caused by: )?[\w.]*(Error|Exception)\b", line)]
    return readable((causes or lines or ["it printed nothing"])[-1])


def readable(text: str) -> str:
    """An error in one line of bounded length, without paths of this machine."""
    first = text.strip().splitlines()[0] if text.strip() else "it printed nothing"
    shortened = re.sub(r"(?<![\w.])/(?:[^\s/'\":]+/)+", "…/", first)
    return shortened if len(shortened) <= 200 else shortened[:199] + "…"


def _waited(process: subprocess.Popen[bytes]) -> int | None:
    try:
        return process.wait(0.5)
    except subprocess.TimeoutExpired:
        return None


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """The group contains only this process and its children."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    finally:
        process.wait()
