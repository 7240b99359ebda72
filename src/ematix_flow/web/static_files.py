"""The built pages: read once when the server starts, so that no path of a request reaches the disk."""

from __future__ import annotations

import hashlib
import mimetypes
import re
from dataclasses import dataclass
from pathlib import Path

UI_FOLDER = Path(__file__).with_name("ui")
_HASHED_NAME = re.compile(r"[-.][A-Za-z0-9_-]{8,}\.[a-z0-9]+$")
_NOT_BUILT = b"""<!doctype html><html lang="en"><meta charset="utf-8"><title>ematix-flow</title>
<p>The pages are not built.
The interface works: <a href="/api/v1/openapi.json">/api/v1/openapi.json</a>.</p></html>
"""
# types that do not depend on the machine's own table
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".json": "application/json",
    ".webmanifest": "application/manifest+json",
    ".woff2": "font/woff2",
    ".png": "image/png",
    ".ico": "image/x-icon",
}


@dataclass(frozen=True)
class StaticFile:
    content: bytes
    kind: str
    tag: str
    cache_control: str


class StaticFiles:
    """The files of a folder by their path; every other path is the page itself, which has its own routes."""

    def __init__(self, folder: Path = UI_FOLDER) -> None:
        self._files = {f"/{path.relative_to(folder).as_posix()}": _read(path) for path in _files(folder)}
        self._index = self._files.get("/index.html") or _file(_NOT_BUILT, ".html", "no-cache")

    def find(self, path: str) -> StaticFile | None:
        """The file at a path; None for a file that is missing, as after an upgrade of the pages."""
        found = self._files.get(path)
        if found is not None:
            return found
        return None if path.startswith("/assets/") else self._index


def _files(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("*")) if path.is_file()] if folder.is_dir() else []


def _read(path: Path) -> StaticFile:
    is_hashed = _HASHED_NAME.search(path.name) is not None and path.name != "index.html"
    forever = "public, max-age=31536000, immutable"
    return _file(path.read_bytes(), path.suffix, forever if is_hashed else "no-cache")


def _file(content: bytes, suffix: str, cache_control: str) -> StaticFile:
    kind = _TYPES.get(suffix) or mimetypes.types_map.get(suffix) or "application/octet-stream"
    return StaticFile(content, kind, f'"{hashlib.sha256(content).hexdigest()[:32]}"', cache_control)
