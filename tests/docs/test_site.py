"""The site builds with strict links, needs nothing from elsewhere, and its search knows the pages."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
LOADED = re.compile(
    r'<(?:script|img|iframe|link(?=[^>]*rel="?(?:stylesheet|preconnect|icon)))[^>]*(?:src|href)="?([^">\s]+)'
)


def test_the_site_builds_without_a_broken_link_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    """Costs about 3 s: one build of the whole site."""
    built = subprocess.run(
        [
            sys.executable,
            "-m",
            "mkdocs",
            "build",
            "--strict",
            "--site-dir",
            str(tmp_path / "site"),
        ],
        cwd=REPOSITORY,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    pages = sorted((tmp_path / "site").glob("**/*.html"))
    elsewhere = {
        loaded
        for page in pages
        for loaded in LOADED.findall(page.read_text(encoding="utf-8"))
        if re.match(r"(?:https?:)?//", loaded)
    }
    assert elsewhere == set()
    index = json.loads((tmp_path / "site" / "search" / "search_index.json").read_text(encoding="utf-8"))
    found = {entry["location"] for entry in index["docs"] if "--with-upstream" in entry["text"]}
    assert any(location.startswith("reference/cli.html#flow-run") for location in found)
    assert (tmp_path / "site" / "search" / "search_index.js").exists()  # for a folder without a server
