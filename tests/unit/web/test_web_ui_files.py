"""The built pages in the package: complete, small, and without a request to another host."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

from ematix_flow.web.static_files import UI_FOLDER

FILES = [path for path in sorted(UI_FOLDER.rglob("*")) if path.is_file()]
INDEX = (UI_FOLDER / "index.html").read_text(encoding="utf-8")
LOCK = Path(__file__).resolve().parents[3] / "web-ui" / "package-lock.json"
LARGEST = 400_000  # bytes, compressed
# names of namespaces, which nobody asks for, and the word that a library gives the parser of addresses
_NAMES = ("http://www.w3.org/", "https://preactjs.com", "http://localhost")


def test_the_page_refers_to_files_that_are_there() -> None:
    named = re.findall(r'(?:src|href)="(/[^"]+)"', INDEX)
    assert named
    assert [name for name in named if not (UI_FOLDER / name.lstrip("/")).is_file()] == []


def test_every_file_but_the_page_has_a_hash_in_its_name() -> None:
    others = [path.name for path in FILES if path.name != "index.html"]
    assert [name for name in others if not re.search(r"-[\w-]{8}\.\w+$", name)] == []


def test_the_page_holds_no_script_and_no_style() -> None:
    assert re.findall(r"<script(?![^>]* src=)[^>]*>", INDEX) == []
    assert "<style" not in INDEX
    assert re.findall(r"\s(?:style|on\w+)=", INDEX) == []


def test_the_pages_are_small() -> None:
    assert sum(len(gzip.compress(path.read_bytes())) for path in FILES) < LARGEST


def test_no_file_names_another_host() -> None:
    found = []
    for path in FILES:
        for url in re.findall(r"https?://[\w.-]+[^\s\"'`)<]*", path.read_text(encoding="utf-8")):
            if not url.startswith(_NAMES):
                found.append(f"{path.name}: {url}")
    assert found == []


def test_data_never_becomes_markup() -> None:
    sources = LOCK.parent / "src"
    found = [
        path.name
        for path in sources.rglob("*.ts*")
        if re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", path.read_text(encoding="utf-8")
        )
    ]
    assert found == []


def test_the_lock_file_names_no_registry_and_a_hash_for_each_package() -> None:
    packages = {name: one for name, one in json.loads(LOCK.read_text())["packages"].items() if name}
    assert [name for name, one in packages.items() if "resolved" in one] == []
    assert [name for name, one in packages.items() if "integrity" not in one] == []


def test_the_built_pages_have_the_cards_of_the_sources() -> None:
    sources = Path(__file__).parents[3] / "web-ui" / "src"
    titles = {
        title
        for path in sources.rglob("*.tsx")
        for title in re.findall(r'<Card title="([^"]+)"', path.read_text(encoding="utf-8"))
    }
    built = "".join(path.read_text(encoding="utf-8") for path in UI_FOLDER.rglob("*.js"))
    assert "Recorded" in titles and "Ledger" not in titles, "no card shows a target's ledger"
    assert not [title for title in titles if f'title:"{title}"' not in built], "make web  builds them"
