"""Runs each probe once for all its tests, also when they are spread over processes of pytest-xdist.

Processes share a folder. The first that needs a probe takes its lock, runs it and writes the result; the
others wait for the lock and read. The lock of a process that died is free: the next one runs the probe.
"""

from __future__ import annotations

import hashlib
import json
import os
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ematix_probe.errors import ProbeError
from ematix_probe.redaction import mask
from ematix_probe.report import RunReport, as_json, report_from_dict


@dataclass(frozen=True)
class ProbeRun:
    """The report of a probe, or why there is none."""

    report: RunReport | None
    error: str | None = None


class ProbeRuns:
    """The runs of one session of pytest, in all of its processes."""

    def __init__(self, folder: Path | None, history: str | None, allowed_hosts: Sequence[str]) -> None:
        self.folder = folder
        self._history, self._hosts = history, tuple(allowed_hosts)
        self._keys: dict[int, str] = {}
        self._known: dict[str, int] = {}  # how many probes look alike
        self._probes: list[Any] = []  # kept, so that no two have the same id()
        self._done: dict[str, ProbeRun] = {}
        self._warnings: list[str] = []

    def register(self, probe: Any) -> str:
        """A key of the probe that is the same in every process: all collect the same tests in one order."""
        if id(probe) not in self._keys:
            plan = probe.plan() if hasattr(probe, "plan") else None
            name = getattr(probe, "name", getattr(probe, "__name__", ""))
            looks = json.dumps([name, getattr(plan, "where", None), probe.assertion_names()], default=str)
            number = self._known[looks] = self._known.get(looks, 0) + 1
            self._keys[id(probe)] = hashlib.sha256(f"{looks} {number}".encode()).hexdigest()[:16]
            self._probes.append(probe)
        return self._keys[id(probe)]

    def result(self, key: str, probe: Any) -> ProbeRun:
        """The run of the probe, which happens at the first call of all processes."""
        if key not in self._done:
            self._done[key] = self._run(probe) if self.folder is None else self._shared_run(key, probe)
        return self._done[key]

    def take_warnings(self) -> list[str]:
        """What could not be recorded since the last call."""
        found, self._warnings = self._warnings, []
        return found

    def _shared_run(self, key: str, probe: Any) -> ProbeRun:
        assert self.folder is not None
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self.folder / f"{key}.json"
        with _locked(self.folder / f"{key}.lock"):
            if not path.exists():
                run = self._run(probe)
                outcome = {"error": run.error, "report": None if run.report is None else run.report.to_dict()}
                unfinished = path.with_suffix(".part")
                unfinished.write_text(json.dumps(as_json(outcome)), encoding="utf-8", errors="surrogatepass")
                os.replace(unfinished, path)
                return run
        found = json.loads(path.read_text(encoding="utf-8", errors="surrogatepass"))
        return ProbeRun(found["report"] and report_from_dict(found["report"]), found["error"])

    def _run(self, probe: Any) -> ProbeRun:
        from ematix_probe.calling import call_probe
        from ematix_probe.history.forgiving import ForgivingHistory
        from ematix_probe.history.store import RunHistory

        try:
            history = None if self._history is None else ForgivingHistory(RunHistory(self._history))
            report = call_probe(probe, history=history, allow_hosts=self._hosts)
        except ProbeError as error:
            return ProbeRun(None, str(error))
        except Exception:  # of the probe itself: each of its tests shows it, and none runs it again
            return ProbeRun(None, mask(traceback.format_exc()))
        if report.metadata.get("interrupted"):  # Ctrl-C during a load ends pytest too
            raise KeyboardInterrupt
        if history is not None:
            self._warnings += [f"{name} was not recorded: {error.what}" for name, error in history.errors]
        return ProbeRun(report)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock of a file; the system releases it when the process ends, however it ends."""
    with open(path, "a+b") as file:
        if os.name == "nt":
            import msvcrt

            file.seek(0)
            while True:
                try:
                    msvcrt.locking(file.fileno(), msvcrt.LK_LOCK, 1)  # type: ignore[attr-defined,unused-ignore]
                    break
                except OSError:  # it was not free for ten seconds
                    continue
            try:
                yield
            finally:
                file.seek(0)
                msvcrt.locking(file.fileno(), msvcrt.LK_UNLCK, 1)  # type: ignore[attr-defined,unused-ignore]
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
            yield
