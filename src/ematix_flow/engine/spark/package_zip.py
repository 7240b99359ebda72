"""This package and `ematix_probe` as one zip file, for executors and Connect servers that lack them."""

from __future__ import annotations

import hashlib
import os
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

from ematix_flow.engine.jvm.cache_folder import cache_subfolder

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = ("ematix_flow", "ematix_probe")


def build_package_zip(env: Mapping[str, str] = os.environ) -> Path:
    """The zip file, built once for each state of the code; its name holds a digest of the code."""
    files = sorted(
        file
        for package in PACKAGES
        for file in (ROOT / package).rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    )
    digest = hashlib.sha256()
    for file in files:
        about = file.stat()
        digest.update(f"{file.relative_to(ROOT)}\0{about.st_size}\0{about.st_mtime_ns}\0".encode())
    folder = cache_subfolder("package", env)
    target = folder / f"ematix_flow-{digest.hexdigest()[:16]}.zip"
    if target.is_file():
        return target
    descriptor, making = tempfile.mkstemp(prefix=".making-", suffix=".zip", dir=folder)
    os.close(descriptor)
    try:
        with zipfile.ZipFile(making, "w", zipfile.ZIP_DEFLATED) as archive:
            for file in files:
                archive.write(file, file.relative_to(ROOT))
        os.replace(making, target)
    finally:
        Path(making).unlink(missing_ok=True)
    for old in sorted(folder.glob("ematix_flow-*.zip"), key=lambda p: p.stat().st_mtime)[:-3]:
        old.unlink(missing_ok=True)
    return target
