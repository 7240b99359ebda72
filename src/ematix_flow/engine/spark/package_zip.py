"""This package as one zip file, for executors and Connect servers that do not have it installed."""

from __future__ import annotations

import hashlib
import os
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

from ematix_flow.engine.jvm.cache_folder import cache_subfolder

PACKAGE = Path(__file__).resolve().parents[2]


def build_package_zip(env: Mapping[str, str] = os.environ) -> Path:
    """The zip file, built once for each state of the code; its name holds a digest of the code."""
    files = sorted(p for p in PACKAGE.rglob("*") if p.is_file() and "__pycache__" not in p.parts)
    digest = hashlib.sha256()
    for file in files:
        about = file.stat()
        digest.update(f"{file.relative_to(PACKAGE)}\0{about.st_size}\0{about.st_mtime_ns}\0".encode())
    folder = cache_subfolder("package", env)
    target = folder / f"ematix_flow-{digest.hexdigest()[:16]}.zip"
    if target.is_file():
        return target
    descriptor, making = tempfile.mkstemp(prefix=".making-", suffix=".zip", dir=folder)
    os.close(descriptor)
    try:
        with zipfile.ZipFile(making, "w", zipfile.ZIP_DEFLATED) as archive:
            for file in files:
                archive.write(file, Path(PACKAGE.name) / file.relative_to(PACKAGE))
        os.replace(making, target)
    finally:
        Path(making).unlink(missing_ok=True)
    for old in sorted(folder.glob("ematix_flow-*.zip"), key=lambda p: p.stat().st_mtime)[:-3]:
        old.unlink(missing_ok=True)
    return target
