"""Terminal features of an output stream: colour and width; and writing that survives a closed pipe.

Also for `ematix_flow`, which raises its own error when nothing can be written.
"""

from __future__ import annotations

import os
import shutil
import sys
from typing import TextIO

from ematix_probe.control_characters import escape_controls

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


def style_text(text: str, style: str | None, stream: TextIO) -> str:
    """The text in a style such as ``bold red``; unchanged if the stream has no colour."""
    if not style or not text or not has_colour(stream):
        return text
    codes = ";".join(_CODES[word] for word in style.split())
    return f"\x1b[{codes}m{text}\x1b[0m"


def terminal_width(stream: TextIO) -> int | None:
    """The number of columns of a terminal; None for a file or pipe."""
    return shutil.get_terminal_size((100, 24)).columns if is_terminal(stream) else None


def write(text: str, stream: TextIO | None = None) -> None:
    """Write lines to stdout, or to the stream. A reader that went away (``… | head -1``) is no error.

    The text is masked already: a stream that masks what others print takes it as it is.
    """
    stream = sys.stdout if stream is None else stream
    put = getattr(stream, "write_masked", stream.write)
    try:
        put(text + "\n")
        stream.flush()
    except BrokenPipeError:
        discard_rest(stream)
    except UnicodeEncodeError:
        encoding = stream.encoding or "ascii"
        put(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")
    except OSError as error:
        discard_rest(stream)
        if stream is not sys.stderr:
            from ematix_probe.errors import ProbeError

            raise ProbeError(
                f"the output cannot be written: {error.strerror}",
                state="what was recorded stays recorded",
                next_step="make room where the output goes, or send it elsewhere",
            ) from error


def say(text: str, style: str | None = None) -> None:
    """Write a message for the user to stderr, so that stdout holds only data."""
    write(style_text(escape_controls(text, keep="\n\t"), style, sys.stderr), sys.stderr)


def discard_rest(stream: TextIO) -> None:
    """Discard the stream's buffer and everything written to it later."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
