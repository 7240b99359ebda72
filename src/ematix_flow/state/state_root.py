"""The state root: the one folder on this machine where run log, locks and caches live.

Asking for it creates nothing; whoever writes there first creates it, for this user alone.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from pathlib import Path

from ematix_flow.errors import ConfigError
from ematix_flow.state.private_files import make_private_folders

ENVIRONMENT = "EMATIX_FLOW_STATE"


def state_root(env: Mapping[str, str]) -> Path:
    """``EMATIX_FLOW_STATE`` or ``~/.ematix-flow``, absolute. It may not exist yet."""
    given = env.get(ENVIRONMENT, "")
    return absolute_path(given, env) if given else home_folder(env) / ".ematix-flow"


def private_directory(path: Path, *, chosen_by: str = ENVIRONMENT, tighten: bool = False) -> Path:
    """The folder, made if it is missing, and then readable by this user alone.

    ``chosen_by`` is the setting that says where it is, for the error. ``tighten`` closes one that is there
    to others: for folders that we name.
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
    """What to do about a file that could not be written: a full disk wants room, not permissions."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "free some space on that disk, and run it again"
    return otherwise


def absolute_path(path: str, env: Mapping[str, str]) -> Path:
    """The path with ``~`` resolved, independent of later changes of the working directory."""
    if path == "~" or path.startswith(("~/", "~" + os.sep)):
        return home_folder(env) / path[2:]
    return Path(os.path.abspath(path))


def home_folder(env: Mapping[str, str]) -> Path:
    """The user's folder as this environment says, or as the system does."""
    given = env.get("HOME") or env.get("USERPROFILE")
    if given:
        return Path(os.path.abspath(given))
    try:
        return Path.home()
    except RuntimeError as error:
        raise ConfigError(
            "this user has no home folder to keep state in",
            next_step=f"set {ENVIRONMENT} to a folder that is writable",
        ) from error
