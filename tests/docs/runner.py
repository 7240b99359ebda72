"""Runs the blocks of one page in order, in one folder, as a reader would who types them in."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.docs.blocks import Block, PageError, blocks_of
from tests.docs.commands import run_commands, run_script

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def run_page(page: Path, folder: Path) -> int:
    """Run the page and return how many blocks ran; PageError names the line of the first that fails."""
    try:
        blocks = blocks_of(page.read_text(encoding="utf-8"))
    except PageError as problem:
        raise PageError(f"{page.name}: {problem}") from None
    ran = 0
    for block in blocks:
        if block.file is not None or block.runs:
            try:
                _run(block, page, folder)
            except Exception as problem:
                raise PageError(f"{page.name}:{block.line}: {problem}") from problem
            ran += 1
    return ran


def _run(block: Block, page: Path, folder: Path) -> None:
    if block.language == "toml":
        tomllib.loads(block.code)
    if block.file is not None:
        if block.language == "python":
            compile(block.code, block.file, "exec")
        target = folder / block.file
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(block.code, encoding="utf-8")
    elif block.language == "python":
        # a real file, because declarations point at their line in it
        script = folder / f"{page.stem.replace('-', '_')}_line_{block.line}.py"
        script.write_text(block.code, encoding="utf-8")
        _expect(block, run_script(script))
    elif block.language in ("sh", "console"):
        _expect(block, run_commands(block.commands, folder))


def _expect(block: Block, code: int) -> None:
    if code != block.exits:
        raise PageError(f"exit code {code}, expected {block.exits}\n{block.code}")
