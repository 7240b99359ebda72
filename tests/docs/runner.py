"""Runs the blocks of one page in order, in one folder, as a reader would who types them in."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.docs.blocks import Block, PageError, blocks_of

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SECONDS_PER_BLOCK = 240
# Pages load a handful of rows: to compile code for each query would cost more than to run it. A page that
# has a file of this name writes it over.
FEW_ROWS = """
[engine.conf]
"spark.sql.codegen.wholeStage" = "false"
"spark.sql.codegen.factoryMode" = "NO_CODEGEN"
"""


def run_page(page: Path, folder: Path, env: Mapping[str, str]) -> int:
    """Run the page and return how many blocks ran; PageError names the line of the first that fails."""
    try:
        blocks = blocks_of(page.read_text(encoding="utf-8"))
    except PageError as problem:
        raise PageError(f"{page.name}: {problem}") from None
    (folder / ".ematix-flow.toml").write_text(FEW_ROWS, encoding="utf-8")
    ran = 0
    for block in blocks:
        if block.file is not None or block.runs:
            try:
                _run(block, page, folder, env)
            except (PageError, SyntaxError, tomllib.TOMLDecodeError) as problem:
                raise PageError(f"{page.name}:{block.line}: {problem}") from None
            ran += 1
    return ran


def _run(block: Block, page: Path, folder: Path, env: Mapping[str, str]) -> None:
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
        _expect(block, [sys.executable, str(script)], folder, env)
    elif block.language in ("sh", "console"):
        _expect(block, ["sh", "-eu", "-c", block.commands], folder, env)


def _expect(block: Block, command: list[str], folder: Path, env: Mapping[str, str]) -> None:
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SECONDS_PER_BLOCK,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise PageError(f"this block did not end within {SECONDS_PER_BLOCK} s") from None
    if done.returncode != block.exits:
        raise PageError(f"exit code {done.returncode}, expected {block.exits}\n{block.code}\n{done.stdout}")
