"""Replaces stdout and stderr during a command: what the user's code prints is masked, and is no data.

With JSON on stdout, what other code prints there goes to stderr.
"""

from __future__ import annotations

import io
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO

from ematix_probe.redaction import mask, remember_secret_variables

_LONGEST = 64 * 1024  # longest line that is held back until its end


class MaskedStream(io.TextIOBase):
    """Masks what is written, line by line; the unfinished line is held back until it is flushed."""

    def __init__(self, real: TextIO, aside: TextIO | None = None) -> None:
        self.real = real
        self._takes: Any = real if aside is None else aside
        self._unfinished = ""
        self._lock = threading.RLock()

    def write(self, text: str) -> int:
        with self._lock:
            self._unfinished += text
            end = max(self._unfinished.rfind("\n"), self._unfinished.rfind("\r")) + 1
            if len(self._unfinished) - end > _LONGEST:
                end = len(self._unfinished)
            if end:
                lines, self._unfinished = self._unfinished[:end], self._unfinished[end:]
                self._takes.write(mask(lines))
        return len(text)

    def write_masked(self, text: str) -> None:
        """Write the command's own text, which is masked: masking JSON again could break it."""
        with self._lock:
            self._write_pending()
            self.real.write(text)

    def flush(self) -> None:
        with self._lock:
            self._write_pending()
            self._takes.flush()
            self.real.flush()

    def _write_pending(self) -> None:
        pending, self._unfinished = self._unfinished, ""
        if pending:
            self._takes.write(mask(pending))

    @property
    def buffer(self) -> Any:
        self.flush()
        return getattr(self._takes, "buffer", self.real.buffer)

    @property
    def encoding(self) -> str:  # type: ignore[override]  # the real one's
        return self.real.encoding

    @property
    def errors(self) -> str | None:  # type: ignore[override]
        return self.real.errors

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return self.real.isatty()

    def fileno(self) -> int:
        return self.real.fileno()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)


@contextmanager
def masked_output(*, as_json: bool) -> Iterator[None]:
    """Within the block, mask secrets in everything that is printed."""
    remember_secret_variables(os.environ)
    before = (sys.stdout, sys.stderr)
    talk: Any = MaskedStream(before[1])
    data: Any = MaskedStream(before[0], talk if as_json else None)
    sys.stdout, sys.stderr = ours = (data, talk)
    try:
        yield
    finally:
        for stream in ours:
            with suppress(OSError, ValueError):  # the reader went away, the stream is closed
                stream.flush()
        sys.stdout, sys.stderr = before
