"""The temporary folder of a session: shuffle files, the unused warehouse, launch files.

It is deleted with the session. The next process that starts removes the folders of killed processes.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import tempfile
from pathlib import Path

_PREFIX = "ematix-flow-spark"


def create_scratch_folder() -> Path:
    """Create a folder that only this user can read.

    Its name holds the host, because hosts may share the disk.
    """
    remove_orphaned_folders()
    return Path(tempfile.mkdtemp(prefix=f"{_PREFIX}-{_host()}-{os.getpid()}-"))


def remove_orphaned_folders() -> None:
    """Remove the folders of processes of this host that have ended."""
    ours = re.compile(rf"{re.escape(_PREFIX)}-{re.escape(_host())}-(\d+)-\w+")
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}-*"):
        match = ours.fullmatch(folder.name)
        if match and not folder.is_symlink() and not _is_running(int(match[1])):
            shutil.rmtree(folder, ignore_errors=True)


def _host() -> str:
    return re.sub(r"\W", "_", socket.gethostname())


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
