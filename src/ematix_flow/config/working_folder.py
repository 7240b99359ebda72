"""The working directory: where the project file, the module and relative paths are looked up."""

from __future__ import annotations

from pathlib import Path

from ematix_flow.errors import ConfigError


def working_folder() -> Path:
    """The working directory of this process. Raises ConfigError if it was deleted."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise ConfigError(
            "the working directory of this process was deleted",
            next_step="change to a folder that exists, then start the command again",
        ) from None
