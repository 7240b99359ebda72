"""The user's home folder: it holds the user's file of connections and, by default, the state root."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def home_folder(env: Mapping[str, str]) -> Path:
    """The home folder by the environment, else by the system. Raises RuntimeError if the user has none."""
    path = env.get("HOME") or env.get("USERPROFILE")
    return Path(os.path.abspath(path)) if path else Path.home()
