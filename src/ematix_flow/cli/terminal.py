"""Writing to an output stream that survives a closed pipe. Colour and width are those of `ematix_probe`.

`errors` is imported inside functions, because ``flow --help`` has to be fast.
"""

from __future__ import annotations

import os
import sys
from typing import TextIO

from ematix_probe.cli.terminal import discard_rest
from ematix_probe.cli.terminal import is_terminal as is_terminal
from ematix_probe.cli.terminal import style_text as style_text
from ematix_probe.cli.terminal import terminal_width as terminal_width
from ematix_probe.control_characters import escape_controls


def are_same_output(one: TextIO, other: TextIO) -> bool:
    """Whether both streams end in the same output: two terminals, or one file or pipe, as after ``2>&1``."""
    if is_terminal(one) and is_terminal(other):
        return True
    try:
        return os.path.sameopenfile(one.fileno(), other.fileno())
    except (OSError, ValueError):
        return False


def write(text: str, stream: TextIO) -> None:
    """Write a line or block. A reader that closed the pipe (``flow list | head -1``) is not an error.

    A failure to write to stderr is ignored; for stdout it raises OutputFailed.
    """
    put = getattr(stream, "write_masked", stream.write)  # the text is already masked
    try:
        put(text + "\n")
        stream.flush()
    except BrokenPipeError:
        discard_rest(stream)
    except OSError as error:
        discard_rest(stream)
        if stream is sys.stderr:
            return
        from ematix_flow.errors import OutputFailed

        raise OutputFailed(
            f"the output cannot be written: {error.strerror}",
            state="what the command did before stays done; flow runs list shows runs",
            next_step="make room where the output goes, or send it elsewhere",
        ) from error
    except UnicodeEncodeError:
        encoding = stream.encoding or "ascii"
        put(text.encode(encoding, "replace").decode(encoding) + "\n")


def open_missing_streams() -> None:
    """Replace a stdout or stderr that the shell closed (``>&-``) with the null device."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115


def say(text: str, style: str | None = None) -> None:
    """Write a message for the user to stderr, so that stdout holds only data."""
    write(style_text(escape_controls(text, keep="\n\t"), style, sys.stderr), sys.stderr)
