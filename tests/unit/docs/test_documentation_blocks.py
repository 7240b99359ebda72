"""The convention for code in pages: which blocks run, how, and what a page may not do."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.blocks import Block, PageError, blocks_of
from tests.docs.runner import run_page


def page(folder: Path, text: str) -> Path:
    path = folder / "page.md"
    path.write_text(text)
    return path


def run(tmp_path: Path, text: str) -> int:
    folder = tmp_path / "run"
    folder.mkdir()
    return run_page(page(tmp_path, text), folder)


def test_a_page_without_code_has_no_block() -> None:
    assert blocks_of("# Title\n\nWords with `inline` code.\n") == []


def test_a_block_carries_its_language_code_and_line() -> None:
    assert blocks_of("text\n\n```python\nx = 1\n```\n") == [Block(3, "python", "x = 1\n")]


def test_a_block_in_a_list_loses_its_indent() -> None:
    assert blocks_of("- item\n\n  ```sh\n  ls\n    -l\n  ```\n")[0].code == "ls\n  -l\n"


def test_a_longer_fence_may_hold_a_shorter_one() -> None:
    (block,) = blocks_of("````markdown\n```python\nx\n```\n````\n")
    assert (block.language, block.code, block.runs) == ("markdown", "```python\nx\n```\n", False)


@pytest.mark.parametrize(("written", "meant"), [("py", "python"), ("bash", "sh"), ("shell", "sh")])
def test_other_names_of_a_language_are_understood(written: str, meant: str) -> None:
    assert blocks_of(f"```{written}\n```\n")[0].language == meant


def test_a_directive_belongs_to_the_block_below_it_alone() -> None:
    first, second = blocks_of("<!-- file: a/b.py -->\n\n```python\nx = 1\n```\n\n```python\ny = 2\n```\n")
    assert (first.file, second.file) == ("a/b.py", None)


def test_a_block_with_a_reason_is_not_run() -> None:
    (block,) = blocks_of("<!-- not run: needs root -->\n```sh\nmake demo\n```\n")
    assert not block.runs
    assert block.not_run == "needs root"


@pytest.mark.parametrize("language", ["json", "text", "sql", "mermaid", ""])
def test_what_is_no_program_is_not_run(language: str) -> None:
    assert not blocks_of(f"```{language}\nanything\n```\n")[0].runs


def test_a_hidden_block_runs_too() -> None:
    (block,) = blocks_of("<!-- preparation\n```sh\ntouch x\n```\n-->\n")
    assert block.runs


def test_of_a_console_block_only_the_commands_are_run() -> None:
    (block,) = blocks_of("```console\n$ flow run \\\n>   --all\nloaded 3 rows\n$ flow list\n```\n")
    assert block.commands == "flow run \\\n  --all\nflow list\n"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("<!-- not run: -->\n```sh\nls\n```\n", "line 1: 'not run:' says nothing"),
        ("<!-- file: -->\n```sh\nls\n```\n", "line 1: 'file:' says nothing"),
        ("<!-- file: ../x.py -->\n```python\n```\n", "outside the page's folder"),
        ("<!-- file: /etc/x -->\n```python\n```\n", "outside the page's folder"),
        ("<!-- exits: soon -->\n```sh\n```\n", "an exit code is a number"),
        ("<!-- file: x.py -->\nwords\n", "no code block follows"),
        ("<!-- file: x.py -->\n", "no code block follows"),
        ("```sh\nls\n", "line 1: this block is never closed"),
    ],
)
def test_a_page_that_breaks_the_convention_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(PageError, match=complaint):
        blocks_of(text)


def test_blocks_of_a_page_share_one_folder(tmp_path: Path) -> None:
    text = (
        "<!-- file: lib/numbers.txt -->\n```text\n42\n```\n"
        "```python\nimport pathlib\nassert pathlib.Path('lib/numbers.txt').read_text() == '42\\n'\n```\n"
        '```console\n$ test "$(cat lib/numbers.txt)" = 42\nfine\n```\n'
    )
    assert run(tmp_path, text) == 3


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("```sh\nfalse\ntrue\n```\n", r"page.md:1: exit code 1, expected 0"),
        ("```sh\necho $NOT_SET_ANYWHERE\n```\n", r"page.md:1: exit code"),
        ("```python\nraise SystemExit(3)\n```\n", r"page.md:1: exit code 3, expected 0"),
        ("```toml\na = \n```\n", r"page.md:1: "),
        ("<!-- file: x.py -->\n```python\ndef f(:\n```\n", r"page.md:2: invalid syntax"),
        ("<!-- exits: 2 -->\n```sh\nexit 1\n```\n", r"page.md:2: exit code 1, expected 2"),
    ],
)
def test_a_block_that_fails_names_its_line(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(PageError, match=complaint):
        run(tmp_path, text)


def test_a_command_may_be_meant_to_fail(tmp_path: Path) -> None:
    assert run(tmp_path, "<!-- exits: 2 -->\n```sh\nexit 2\n```\n") == 1
