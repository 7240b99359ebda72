"""The version of the code that ran: this package's version and the project's git commit, read without git."""

from __future__ import annotations

import functools
import re
from pathlib import Path

from ematix_flow._version import __version__

_COMMIT = re.compile(r"[0-9a-f]{40,64}")
_COMMIT_CHARACTERS = 12


def code_version(file: str | None) -> str:
    """Such as ``0.4.0, git 1a2b3c4d5e6f``. ``file`` is any file of the project."""
    commit = None if file is None else _commit_of(str(Path(file).absolute().parent))
    return __version__ if commit is None else f"{__version__}, git {commit[:_COMMIT_CHARACTERS]}"


def _commit_of(folder: str) -> str | None:
    git = _git_folder(folder)
    try:
        return None if git is None else _head(git)
    except (OSError, UnicodeDecodeError):
        return None  # an unreadable .git folder must not stop a run


@functools.lru_cache(maxsize=256)
def _git_folder(folder: str) -> Path | None:
    """The folder that contains HEAD; a linked work tree has its own."""
    for above in (Path(folder), *Path(folder).parents):
        found = above / ".git"
        if found.is_dir():
            return found
        if found.is_file():
            named = found.read_text(encoding="utf-8").partition("gitdir:")[2].strip()
            return (above / named) if named else None
    return None


def _head(git: Path) -> str | None:
    head = (git / "HEAD").read_text(encoding="utf-8").strip()
    if not head.startswith("ref:"):
        return head if _COMMIT.fullmatch(head) else None
    name = head.partition(":")[2].strip()
    for place in (git, _common_folder(git)):
        if (place / name).is_file():
            return (place / name).read_text(encoding="utf-8").strip()
        packed = place / "packed-refs"
        for line in packed.read_text(encoding="utf-8").splitlines() if packed.is_file() else ():
            commit, _, ref = line.partition(" ")
            if ref == name:
                return commit
    return None


def _common_folder(git: Path) -> Path:
    """The folder that holds the branches of a linked work tree."""
    common = git / "commondir"
    return git / common.read_text(encoding="utf-8").strip() if common.is_file() else git
