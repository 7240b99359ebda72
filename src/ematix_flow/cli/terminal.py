"""Terminal features of an output stream: colour and width; and writing that survives a closed pipe.

`errors` is imported inside functions, because ``flow --help`` has to be fast.
"""

from __future__ import annotations

import os
import shutil
import sys
from typing import TextIO

_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}


def has_colour(stream: TextIO) -> bool:
    """Only a terminal, and only when NO_COLOR is not set."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return bool(os.environ.get("FORCE_COLOR")) or is_terminal(stream)


def is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except ValueError:  # closed
        return False


def are_same_output(one: TextIO, other: TextIO) -> bool:
    """Whether both streams end in the same output: two terminals, or one file or pipe, as after ``2>&1``."""
    if is_terminal(one) and is_terminal(other):
        return True
    try:
        return os.path.sameopenfile(one.fileno(), other.fileno())
    except (OSError, ValueError):
        return False


def style_text(text: str, style: str | None, stream: TextIO) -> str:
    """The text in a style such as ``bold red``; unchanged if the stream has no colour."""
    if not style or not text or not has_colour(stream):
        return text
    codes = ";".join(_CODES[word] for word in style.split())
    return f"\x1b[{codes}m{text}\x1b[0m"


def terminal_width(stream: TextIO) -> int | None:
    """The number of columns of a terminal; None for a file or pipe."""
    return shutil.get_terminal_size((100, 24)).columns if is_terminal(stream) else None


def write(text: str, stream: TextIO) -> None:
    """Write a line or block. A reader that closed the pipe (``flow list | head -1``) is not an error.

    A failure to write to stderr is ignored; for stdout it raises OutputFailed.
    """
    put = getattr(stream, "write_masked", stream.write)  # the text is already masked
    try:
        put(text + "\n")
        stream.flush()
    except BrokenPipeError:
        _discard_rest(stream)
    except OSError as error:
        _discard_rest(stream)
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


def _discard_rest(stream: TextIO) -> None:
    """Discard the stream's buffer and everything written to it later."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def open_missing_streams() -> None:
    """Replace a stdout or stderr that the shell closed (``>&-``) with the null device."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115


def say(text: str, style: str | None = None) -> None:
    """Write a message for the user to stderr, so that stdout holds only data."""
    write(style_text(text, style, sys.stderr), sys.stderr)
