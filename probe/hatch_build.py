"""Tells hatchling where the package and its licence are: in the repository next to this folder, in a source
distribution inside it. Takes the version from the package."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

_UNUSED = {"__pycache__"}


def _repository(root: str) -> Path:
    """The folder that holds ``src``: of a source distribution, else of the repository."""
    inside = Path(root)
    return inside if (inside / "src" / "ematix_probe").is_dir() else inside.parent


class VersionHook(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        text = (_repository(self.root) / "src" / "ematix_probe" / "_version.py").read_text(encoding="utf-8")
        found = re.search(r'^__version__ = "([^"]+)"', text, re.MULTILINE)
        if found is None:
            raise ValueError("src/ematix_probe/_version.py names no version")
        metadata["version"] = found[1]


class SourcesHook(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        repository = _repository(self.root)
        package = repository / "src" / "ematix_probe"
        below = "" if self.target_name == "wheel" else "src/"
        for path in sorted(package.rglob("*")):
            if path.is_file() and not _UNUSED & set(path.parts):
                name = path.relative_to(package).as_posix()
                build_data["force_include"][str(path)] = f"{below}ematix_probe/{name}"
        licence = repository / "LICENSE"
        if self.target_name == "sdist":
            build_data["force_include"][str(licence)] = "LICENSE"
        elif not (Path(self.root) / "LICENSE").exists():
            metadata = f"ematix_probe_spark-{self.metadata.version}.dist-info"
            build_data["force_include"][str(licence)] = f"{metadata}/licenses/LICENSE"
