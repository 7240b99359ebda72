"""The repository speaks only of the product: it contains nothing of one machine, registry or tracker."""

from __future__ import annotations

import functools
import re
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]

FORBIDDEN = {
    "a path of one machine": r"(?<![\w.~-])/(?:work|root)/",
    "a package registry's host": r"\b(?:pypi|pythonhosted|npmjs|repo1\.maven|repo\.maven\.apache"
    r"|proxy\.golang|deb\.debian)\.org",
    "a tracker's number": r"\b(?:issue|ticket|pull request) ?#\d",
}


@functools.cache
def tracked_texts() -> dict[Path, str]:
    """Every tracked file but pictures and archives."""
    texts = {}
    for path in tracked_files():
        with suppress(UnicodeDecodeError):
            texts[path] = path.read_text(encoding="utf-8")
    return texts


def tracked_files() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, text=True, check=True
    ).stdout
    return [REPOSITORY / name for name in listed.split("\0") if name and (REPOSITORY / name).is_file()]


def findings(text: str, pattern: str) -> list[str]:
    found = re.compile(pattern, re.IGNORECASE)
    if not found.search(text):
        return []
    return [f"{n}: {line.strip()}" for n, line in enumerate(text.splitlines(), 1) if found.search(line)]


@pytest.mark.parametrize("what", FORBIDDEN)
def test_no_tracked_text_holds(what: str) -> None:
    found = []
    for path, text in tracked_texts().items():
        found += [f"{path.relative_to(REPOSITORY)}:{line}" for line in findings(text, FORBIDDEN[what])]
    assert found == []


@pytest.mark.parametrize(
    ("what", "text"),  # written with a gap, so that this file does not hold what it looks for
    [
        ("a path of one machine", "see /wor_k/main/x.py"),
        ("a path of one machine", "HOME=/roo_t/.m2"),
        ("a package registry's host", "https://pyp_i.org/simple"),
        ("a package registry's host", "https://repo1.mav_en.org/maven2"),
        ("a tracker's number", "as Issu_e #3 asks"),
    ],
)
def test_the_search_finds_what_it_looks_for(what: str, text: str) -> None:
    assert findings(text.replace("_", ""), FORBIDDEN[what])


@pytest.mark.parametrize("text", ["spark/work/dir", "~/root/", "an issue with numbers", "s3://bucket/work/x"])
def test_the_search_leaves_other_text_alone(text: str) -> None:
    assert not any(findings(text, pattern) for pattern in FORBIDDEN.values())
