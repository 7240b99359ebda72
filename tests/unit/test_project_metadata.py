"""pyproject.toml, the lock files and the pages about them agree with each other."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

REPOSITORY = Path(__file__).resolve().parents[2]
PROJECT: dict[str, Any] = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))


def library_names() -> set[str]:
    """Every library that pyproject.toml names, but for this one."""
    project = PROJECT["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    groups += PROJECT["dependency-groups"].values()
    names = {re.split(r"[^A-Za-z0-9._-]", line)[0] for group in groups for line in group}
    return names - {project["name"]}


def test_every_library_has_its_reason_on_the_page_about_libraries() -> None:
    page = (REPOSITORY / "docs" / "how-it-works" / "libraries.md").read_text(encoding="utf-8")
    assert {name for name in library_names() if f"`{name}`" not in page} == set()


def test_every_library_is_locked() -> None:
    locked = set(re.findall(r"^([a-z0-9._-]+)==", (REPOSITORY / "lock" / "dev.txt").read_text(), re.M))
    assert library_names() - locked == set()


def test_every_locked_requirement_has_a_hash() -> None:
    for lock in (REPOSITORY / "lock").glob("*.txt"):
        entries = re.findall(r"^[a-z0-9][^\n]*\n(?:[ \t]+[^\n]*\n?)*", lock.read_text(), re.M)
        assert entries, lock.name
        assert [e.splitlines()[0] for e in entries if "--hash=sha256:" not in e] == [], lock.name


def test_a_runtime_requirement_is_locked_at_the_same_version_everywhere() -> None:
    def pins(name: str) -> set[str]:
        text = (REPOSITORY / "lock" / name).read_text()
        return set(re.findall(r"^([a-z0-9._-]+==\S+)", text, re.M))  # where it is needed may differ

    assert pins("runtime.txt") - pins("dev.txt") == set()
    assert pins("build.txt") - pins("dev.txt") == set()


def test_every_backend_is_under_the_rule_that_no_backend_knows_another() -> None:
    contracts = PROJECT["tool"]["importlinter"]["contracts"]
    (rule,) = [c for c in contracts if c.get("containers") == ["ematix_flow.backends"]]
    ruled = set(re.findall(r"\w+", " ".join(rule["layers"])))
    folders = (REPOSITORY / "src" / "ematix_flow" / "backends").glob("*/__init__.py")
    assert {folder.parent.name for folder in folders} - ruled == set()
