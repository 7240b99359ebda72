"""Replaces ``sys.stdout`` and ``sys.stderr`` during a command, to mask secrets that the user's code prints.

A line is masked when it ends or is flushed, so that a secret written in pieces is found and a progress bar
still moves. Bytes written to ``.buffer`` are not masked. The commands' own output is masked when it is
created, and is not masked again. The commands of ``flow`` use it too.
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
    """Wraps a stream and masks what is written to it, line by line.

    The lines go to ``aside`` instead if it is given, because the stream itself takes one JSON document.
    """

    def __init__(self, real: TextIO, aside: TextIO | None = None) -> None:
        self.real = real
        self._takes = real if aside is None else aside
        self._unfinished_line = ""
        self._writing = threading.RLock()

    def write(self, text: str) -> int:
        with self._writing:
            self._unfinished_line += text
            end = max(self._unfinished_line.rfind("\n"), self._unfinished_line.rfind("\r")) + 1
            if len(self._unfinished_line) - end > _LONGEST:
                end = len(self._unfinished_line)
            if end:
                lines, self._unfinished_line = self._unfinished_line[:end], self._unfinished_line[end:]
                self._takes.write(mask(lines))
        return len(text)

    def write_masked(self, text: str) -> None:
        """Write text that is already masked: masking JSON again could break it."""
        with self._writing:
            self._write_pending()
            self.real.write(text)

    def flush(self) -> None:
        with self._writing:
            self._write_pending()
            self._takes.flush()
            self.real.flush()

    def _write_pending(self) -> None:
        unfinished_line, self._unfinished_line = self._unfinished_line, ""
        if unfinished_line:
            self._takes.write(mask(unfinished_line))

    @property
    def buffer(self) -> Any:
        """The buffer for bytes; pending text is written first."""
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

    def __getattr__(self, name: str) -> Any:  # reconfigure, mode, name and the like
        return getattr(self.real, name)


@contextmanager
def masked_output(*, as_json: bool = False) -> Iterator[None]:
    """Within the block, mask secrets in everything that is printed, logged or warned.

    With ``as_json``, stdout takes one document, and what other code prints goes to stderr.
    """
    remember_secret_variables(os.environ)
    before = (sys.stdout, sys.stderr)
    talk: Any = sys.stderr
    if not hasattr(talk, "handler"):  # lines of JSON are masked already
        talk = sys.stderr = MaskedStream(talk)
    sys.stdout = MaskedStream(sys.stdout, talk if as_json else None)
    ours = (sys.stdout, talk)
    try:
        yield
    finally:
        for stream in ours:
            with suppress(OSError, ValueError):  # no reader, a full disk, a closed stream
                stream.flush()
        sys.stdout, sys.stderr = before
