"""The cache folder for jars, class-data archives, Java shims and Spark's logs. All of it can be made again.

It is ``EMATIX_FLOW_CACHE``, else ``$XDG_CACHE_HOME/ematix-flow``, else ``~/.cache/ematix-flow``. If that
cannot be written (a read-only home in a container), it is a private temporary folder.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from ematix_flow.errors import ConfigError

_MAX_LOGS = 20
_LOG_DAYS = 14


def cache_folder(env: Mapping[str, str] = os.environ) -> Path:
    """The folder, created if it is missing."""
    given = env.get("EMATIX_FLOW_CACHE")
    if given:
        folder = Path(given).expanduser().absolute()
        if not _is_writable(folder):
            raise ConfigError(
                f"the cache folder {folder} cannot be written",
                next_step="set EMATIX_FLOW_CACHE to a folder that can, or unset it",
            )
        return folder
    home = env.get("XDG_CACHE_HOME") or _home_folder(env)
    if home:
        folder = Path(home) / "ematix-flow"
        if _is_writable(folder):
            return folder
    return _private_temporary_folder()


def cache_subfolder(name: str, env: Mapping[str, str] = os.environ) -> Path:
    folder = cache_folder(env) / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def spark_log(env: Mapping[str, str] = os.environ) -> Path:
    """The log file of Spark in this process."""
    return cache_subfolder("logs", env) / f"spark-{os.getpid()}.log"


def drop_old_logs(env: Mapping[str, str] = os.environ) -> None:
    """Delete all but the newest logs, and logs older than two weeks."""
    found = []
    for path in cache_subfolder("logs", env).glob("spark-*.log"):
        with contextlib.suppress(FileNotFoundError):  # another process may delete logs too
            found.append((path.stat().st_mtime, path))
    oldest = time.time() - _LOG_DAYS * 86400
    for rank, (changed, path) in enumerate(sorted(found, reverse=True)):
        if rank >= _MAX_LOGS or changed < oldest:
            path.unlink(missing_ok=True)


def _home_folder(env: Mapping[str, str]) -> str | None:
    home = env.get("HOME") or env.get("USERPROFILE")
    return str(Path(home) / ".cache") if home else None


def _is_writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK | os.X_OK)


def _private_temporary_folder() -> Path:
    """A temporary folder, used only if it belongs to this user and no one else can write to it."""
    folder = Path(tempfile.gettempdir()) / f"ematix-flow-{os.getuid() if hasattr(os, 'getuid') else 'user'}"
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    about = folder.stat(follow_symlinks=False)
    ours = not hasattr(os, "getuid") or (about.st_uid == os.getuid() and about.st_mode & 0o077 == 0)
    if folder.is_symlink() or not ours:
        raise ConfigError(
            f"no folder to keep jars and logs in: the home is not writable, and {folder} is another user's",
            next_step="set EMATIX_FLOW_CACHE to a folder that only you can write",
        )
    return folder
