"""The projects that ``flow init`` and ``flow demo`` write, file by file as they are written.

A template's name in the project may differ: package tools skip files whose names begin with a dot, and
checkers of this package have no business in a user's pipelines.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from ematix_flow.errors import UsageError

RENAMED = {
    "pipelines.py.txt": "pipelines.py",
    "project.toml": ".ematix-flow.toml",
    "gitignore": ".gitignore",
}


def write_scaffold(
    name: str, names: tuple[str, ...], folder: Path, *, force: bool, next_step: str
) -> list[Path]:
    """Write the templates into the folder. Without ``force`` no file that is there is replaced."""
    source = files(__name__) / name
    wanted = {folder / RENAMED.get(template, template): source / template for template in names}
    there = [path.name for path in wanted if path.exists()]
    if there and not force:
        raise UsageError(
            f"{folder} already has {', '.join(there)}", state="nothing was written", next_step=next_step
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, template in wanted.items():
            path.write_text(template.read_text(encoding="utf-8"), encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"cannot write into {folder}: {error.strerror or error}", next_step="choose another folder"
        ) from error
    return list(wanted)


def changed_templates(name: str, names: tuple[str, ...], folder: Path) -> list[str]:
    """Files of the scaffold that are in the folder with another content than the template's."""
    source = files(__name__) / name
    there = {folder / RENAMED.get(template, template): source / template for template in names}
    return [
        path.name
        for path, template in there.items()
        if path.exists() and path.read_bytes() != template.read_bytes()
    ]
