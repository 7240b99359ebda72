"""Runs commands of `flow` in their own processes, for what needs drivers or may take long.

None of their libraries stays in the server. A command that does not end in time, or is still at work when the
server stops, is ended.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, Any

from ematix_flow.errors import FlowError
from ematix_flow.web.answers import Refused


class CommandProcesses:
    """The commands that one server has started. Safe for several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._is_closed = False

    def run(
        self,
        arguments: Sequence[str],
        shown: str,
        longest: float,
        variables: Mapping[str, str] | None = None,
    ) -> Any:
        """Return the JSON that a command writes. Raises the refusal 503 with its error if it fails.

        ``shown`` is the command as a person types it. Secrets belong into ``variables``: others see
        arguments.
        """
        try:
            # a file, and no pipe: what the command has started, as a JVM, may keep a pipe open after its end
            with tempfile.TemporaryFile() as output:
                with self._started(arguments, variables, output) as process:
                    process.wait(longest)
                output.seek(0)
                found = json.load(output)
        except subprocess.TimeoutExpired as error:
            raise Refused(503, _no_answer(shown, f"it did not end within {longest:g} s")) from error
        except (OSError, ValueError) as error:
            why = "the server stops" if self._is_closed else type(error).__name__
            raise Refused(503, _no_answer(shown, why)) from error
        if isinstance(found, dict) and "error" in found:
            problem = found["error"]
            raise Refused(503, FlowError(problem["what"], state=problem["state"], next_step=problem["next"]))
        return found

    @contextmanager
    def _started(
        self, arguments: Sequence[str], variables: Mapping[str, str] | None, output: IO[bytes]
    ) -> Iterator[subprocess.Popen[bytes]]:
        """A command at work, which ends with the block."""
        with self._lock:
            if self._is_closed:
                raise InterruptedError
            process = subprocess.Popen(
                [sys.executable, "-m", "ematix_flow", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.DEVNULL,
                env={**os.environ, **(variables or {})},
            )
            self._running.add(process)
        try:
            yield process
        finally:
            with self._lock:
                self._running.discard(process)
            process.kill()
            process.wait()

    def close(self) -> None:
        """End the commands that are at work: their requests are refused, and so are later ones."""
        with self._lock:
            self._is_closed = True
            for process in self._running:
                process.kill()


def _no_answer(shown: str, why: str) -> FlowError:
    return FlowError(
        f"{shown} gave no answer: {why}", state="nothing was changed", next_step=f"{shown}  shows why"
    )
