"""The templates of the projects that ``flow init`` and ``flow demo`` write.

A file's path in the project may differ from its name here: package tools skip files whose names begin with a
dot, and the linters of this package must not check a user's pipelines.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

from ematix_flow.errors import UsageError

DESTINATIONS = {
    "pipelines.py.txt": "pipelines.py",
    "project.toml": ".ematix-flow.toml",
    "gitignore": ".gitignore",
    "dockerignore": ".dockerignore",
    "flow.service": "deploy/flow.service",
    "flow-run-due.service": "deploy/flow-run-due.service",
    "flow-run-due.timer": "deploy/flow-run-due.timer",
    "cronjob.yaml": "deploy/cronjob.yaml",
    "scheduler.yaml": "deploy/scheduler.yaml",
    "flow.yml": ".github/workflows/flow.yml",
}
_PROJECT_PLACEHOLDER = "PROJECT_NAME"  # replaced by the project's name


def write_scaffold(
    scaffolds: Mapping[str, tuple[str, ...]], folder: Path, *, force: bool, next_step: str
) -> list[Path]:
    """Write the templates of each scaffold. Existing files are replaced only with ``force``."""
    wanted = _rendered_files(scaffolds, folder)
    there = [str(path.relative_to(folder)) for path in wanted if path.exists()]
    if there and not force:
        raise UsageError(
            f"{folder} already has {', '.join(there)}", state="nothing was written", next_step=next_step
        )
    try:
        for path, text in wanted.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"cannot write into {folder}: {error.strerror or error}", next_step="choose another folder"
        ) from error
    return list(wanted)


def changed_templates(scaffolds: Mapping[str, tuple[str, ...]], folder: Path) -> list[str]:
    """The files of the scaffolds in the folder whose content differs from the template."""
    return [
        path.name
        for path, text in _rendered_files(scaffolds, folder).items()
        if path.exists() and path.read_bytes() != text.encode()
    ]


def project_name(folder: Path) -> str:
    """The folder's name in lower-case letters, digits and hyphens, valid for images, units and Kubernetes."""
    name = re.sub(r"[^a-z0-9]+", "-", folder.resolve().name.lower()).strip("-")[:40].strip("-")
    return name if re.match("[a-z]", name) else f"flow-{name}".strip("-")


def _rendered_files(scaffolds: Mapping[str, tuple[str, ...]], folder: Path) -> dict[Path, str]:
    """The content of each file."""
    name = project_name(folder)
    return {
        folder / DESTINATIONS.get(template, template): (files(__name__) / scaffold / template)
        .read_text(encoding="utf-8")
        .replace(_PROJECT_PLACEHOLDER, name)
        for scaffold, templates in scaffolds.items()
        for template in templates
    }
