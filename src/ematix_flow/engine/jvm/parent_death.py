"""A child process that never outlives this one, even if this one is killed while the child starts.

On Linux the kernel kills the child when the *thread* that started it ends. So a separate thread starts the
child and lives until the child is released. On other systems the child is started as usual, and ends when its
standard input closes.
"""

from __future__ import annotations

import os
import queue
import shutil
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import Any

# Runs in the child before the program: requests the signal, then checks that the parent is still alive.
_LAUNCHER = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)
for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # as Python does, and passes on
    signal.signal(ignored, signal.SIG_DFL)
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
try:
    os.execv(sys.argv[2], sys.argv[2:])
except OSError as error:
    sys.exit(f"Error: {sys.argv[2]} does not start: {error.strerror}")
"""
IS_SUPPORTED = sys.platform == "linux"


class BoundChild:
    """A started process that ends with this one. Call `release` after it has ended."""

    def __init__(self, command: Sequence[str], **options: Any) -> None:
        """``options`` are those of `subprocess.Popen`; OSError when there is no such program."""
        self._command, self._options = list(command), options
        self._is_over = threading.Event()
        self._abandoned = threading.Event()
        started: queue.SimpleQueue[subprocess.Popen[bytes] | OSError] = queue.SimpleQueue()
        threading.Thread(target=self._run_child, args=(started,), name="spark-parent", daemon=True).start()
        try:
            found = started.get()
        except BaseException:  # Ctrl-C before the process is known
            self._abandoned.set()
            self._is_over.set()
            raise
        if isinstance(found, OSError):
            raise found
        self.process = found

    def release(self) -> None:
        self._is_over.set()

    def _run_child(self, started: queue.SimpleQueue[subprocess.Popen[bytes] | OSError]) -> None:
        try:
            process = subprocess.Popen(self._launcher_command(), **self._options)
        except OSError as error:
            started.put(error)
            return
        started.put(process)
        self._is_over.wait()
        if self._abandoned.is_set():
            process.kill()
            process.wait()
            if process.stdin is not None:
                process.stdin.close()

    def _launcher_command(self) -> list[str]:
        if not IS_SUPPORTED:
            return self._command
        env = self._options.get("env") or os.environ
        program = shutil.which(self._command[0], path=env.get("PATH"))
        if program is None:
            raise FileNotFoundError(2, os.strerror(2), self._command[0])
        return [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), program, *self._command[1:]]
