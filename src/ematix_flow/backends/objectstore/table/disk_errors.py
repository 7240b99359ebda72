"""Turns errors of the disk into errors that say what to do."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ematix_flow.errors import FlowError, TargetFailed

_STEPS = {
    errno.ENOSPC: "free some space on the disk, and run it again",
    errno.EDQUOT: "free some space within the quota, and run it again",
    errno.EFBIG: "raise the limit on the size of a file, and run it again",
    errno.EACCES: "give this user the right to write there, or choose another path for the connection",
    errno.EPERM: "give this user the right to write there, or choose another path for the connection",
    errno.EROFS: "mount it writable, or choose another path for the connection",
    errno.ENOTDIR: "choose a path for the connection that is a folder",
    errno.EEXIST: "move what is in the way, or choose another path for the connection",
}


@contextmanager
def explain_disk_errors(path: Path, state: str) -> Iterator[None]:
    """Turn an OSError in the block into TargetFailed with the state that remains and what to do."""
    try:
        yield
    except FlowError:
        raise
    except OSError as error:
        raise disk_error(path, error, state) from error


def disk_error(path: Path, error: OSError, state: str) -> TargetFailed:
    where = error.filename2 or error.filename or path
    why = error.strerror or str(error)
    number = error.errno or 0
    step = _STEPS.get(number, "look at the disk, and run it again")
    return TargetFailed(f"cannot write {where}: {why}", state=state, next_step=step)
