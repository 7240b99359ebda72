"""The state root: the folder on this machine for run log, locks and caches.

Asking for it creates nothing; the first write creates it, readable by this user only.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from pathlib import Path

from ematix_flow.config.home_folder import home_folder
from ematix_flow.errors import ConfigError
from ematix_flow.state.private_files import make_private_folders

ENVIRONMENT = "EMATIX_FLOW_STATE"


def state_root(env: Mapping[str, str]) -> Path:
    """Return ``EMATIX_FLOW_STATE`` or ``~/.ematix-flow`` as an absolute path. It may not exist yet."""
    path = env.get(ENVIRONMENT, "")
    return absolute_path(path, env) if path else _home_folder(env) / ".ematix-flow"


def private_directory(path: Path, *, chosen_by: str = ENVIRONMENT, tighten: bool = False) -> Path:
    """Return the folder; creates it if it is missing, readable by this user only.

    ``chosen_by`` is the setting with its path, for the error. ``tighten`` closes an existing folder to
    others: for folders that we name.
    """
    try:
        make_private_folders(path, tighten=tighten)
    except OSError as error:
        raise ConfigError(
            f"cannot make the folder {path}: {error.strerror or error}",
            next_step=next_step_for(error, f"make it writable, or set {chosen_by} to a folder that is"),
        ) from error
    return path


def next_step_for(error: OSError, otherwise: str) -> str:
    """Return the next step for a file that could not be written: a full disk needs space, not permissions."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "free some space on that disk, and run it again"
    return otherwise


def absolute_path(path: str, env: Mapping[str, str]) -> Path:
    """Return the absolute path with ``~`` resolved."""
    if path == "~" or path.startswith(("~/", "~" + os.sep)):
        return _home_folder(env) / path[2:]
    return Path(os.path.abspath(path))


def _home_folder(env: Mapping[str, str]) -> Path:
    try:
        return home_folder(env)
    except RuntimeError as error:
        raise ConfigError(
            "this user has no home folder to keep state in",
            next_step=f"set {ENVIRONMENT} to a folder that is writable",
        ) from error
