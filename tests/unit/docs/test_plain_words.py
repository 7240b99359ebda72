"""Pages, help texts, and the texts and test names of the code use plain words: old or vague ones stay out."""

from __future__ import annotations

import re
import tokenize
from pathlib import Path

import pytest

from tests.unit.docs.test_site_pages import PAGES, REPOSITORY, reference_pages

# What to write instead is in the second column
REFUSED = {
    r"mend(?:s|ed|ing)?": "fix",
    r"anew": "again",
    r"besides?": "next to, also",
    r"of (?:its|their|your|his|her|our|my) own": "its own, separate",
    r"whoever": "name the actor",
    r"(?:told|tells?) of": "shows, reports, sends",
    r"be it": "say which",
    r"(?:without|with) a word": "without a heartbeat, silently",
    r"heard of": "sends a heartbeat",
    r"mind who": "say what to do",
    r"unless told": "by default",
    r"whatever|whichever": "any, name the cases",
    r"likewise": "also",
    r"thereof|therein|thereby": "its, in it, by it",
    r"whom": "name the receiver",
    r"in the clear": "unencrypted",
}
SCAFFOLDS = sorted((REPOSITORY / "src" / "ematix_flow" / "cli" / "scaffolds").glob("**/*.md"))
CHANGELOG = REPOSITORY / "CHANGELOG.md"
SOURCES = [
    source
    for folder in ("src", "benchmarks", "tests")
    for source in sorted((REPOSITORY / folder).rglob("*.py"))
    if source.name != Path(__file__).name  # it holds the refused words
    and REPOSITORY / "benchmarks" / "data" not in source.parents  # the rivals' environments
]
TESTS = sorted((REPOSITORY / "tests").rglob("test_*.py"))
FSTRING_TEXT = getattr(tokenize, "FSTRING_MIDDLE", None)  # before Python 3.12 an f-string is one STRING
PATTERN = re.compile(rf"\b(?:{'|'.join(REFUSED)})\b", re.IGNORECASE)


def prose(text: str) -> str:
    """The text without code blocks and inline code; lines keep their numbers."""
    blank = re.sub(r"^(```|~~~).*?^\1", lambda found: "\n" * found[0].count("\n"), text, flags=re.M | re.S)
    return re.sub(r"`[^`\n]*`", "", blank)


def findings(text: str) -> list[str]:
    return [
        f"{number}: {line.strip()}"
        for number, line in enumerate(text.splitlines(), 1)
        if PATTERN.search(line)
    ]


def code_texts(source: Path) -> list[str]:
    """The lines of comments, docstrings and other texts of a module, with their numbers."""
    with source.open("rb") as file:
        tokens = list(tokenize.tokenize(file.readline))
    return [
        f"{token.start[0] + offset}: {line}"
        for token in tokens
        if token.type in (tokenize.COMMENT, tokenize.STRING, FSTRING_TEXT)
        for offset, line in enumerate(token.string.splitlines())
    ]


@pytest.mark.parametrize(
    "page", [*PAGES, *SCAFFOLDS, CHANGELOG], ids=lambda page: page.relative_to(REPOSITORY).as_posix()
)
def test_a_page_uses_plain_words(page) -> None:
    assert findings(prose(page.read_text(encoding="utf-8"))) == []


def test_help_texts_use_plain_words() -> None:
    reference = reference_pages()
    assert findings("\n".join(reference.cli_page())) == []


def test_the_reference_of_the_python_api_uses_plain_words() -> None:
    reference = reference_pages()
    assert findings("\n".join(reference.api_page())) == []


def test_comments_docstrings_and_messages_use_plain_words() -> None:
    found = {
        source.relative_to(REPOSITORY).as_posix(): [
            line for line in code_texts(source) if PATTERN.search(line)
        ]
        for source in SOURCES
        if PATTERN.search(source.read_text(encoding="utf-8"))
    }
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_names_of_tests_use_plain_words() -> None:
    names = [
        f"{source.relative_to(REPOSITORY)}: {name}"
        for source in TESTS
        for name in re.findall(r"^ *(?:def|class) (\w+)", source.read_text(encoding="utf-8"), re.M)
    ]
    assert [name for name in names if PATTERN.search(name.replace("_", " "))] == []


def test_the_commands_of_the_makefile_are_described_in_plain_words() -> None:
    assert findings((REPOSITORY / "Makefile").read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "text",
    ["It is loaded anew.", "a file beside it", "a store of your own", "Who is told of failures", "Mend it."],
)
def test_the_search_finds_what_it_looks_for(text: str) -> None:
    assert findings(text)


def test_the_texts_of_code_are_comments_docstrings_and_strings(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text('"""Of a\nmodule."""\nbeside = f"one {beside} two"  # why\n', encoding="utf-8")
    texts = "\n".join(code_texts(module))
    assert '1: """Of a\n2: module' in texts
    assert "3: # why" in texts
    assert "one " in texts


@pytest.mark.parametrize("text", ["its own process", "a recommended way", "beneath", "`--anew` starts again"])
def test_the_search_leaves_other_text_alone(text: str) -> None:
    assert not findings(prose(text))
