"""``flow init``: a new project that runs at once."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from ematix_flow.cli.group import new_app
from ematix_flow.cli.options import OutputOption
from ematix_flow.cli.output import write_json, write_text
from ematix_flow.cli.terminal import say

app = new_app()

_TEMPLATES = ("pipelines.py.txt", "sample_data.py", "project.toml", "gitignore", "README.md")


@app.command()
def init(
    path: Annotated[Path, typer.Argument(metavar="PATH", hidden=True)] = Path("."),
    force: Annotated[bool, typer.Option("--force", help="Replace files that are there.")] = False,
    output: OutputOption = "text",
) -> None:
    """Make a new project in PATH (here by default): two pipelines and a small source to run them on."""
    from ematix_flow.cli.scaffolds import write_scaffold
    from ematix_flow.cli.scaffolds.starter import sample_data

    shown = os.path.relpath(path)
    written = write_scaffold(
        "starter",
        _TEMPLATES,
        path,
        force=force,
        next_step=f"choose another folder, or replace them with  flow init {shown} --force",
    )
    source = path / sample_data.DATABASE
    sample_data.create(str(source))
    if output == "json":
        write_json({"path": str(path.resolve()), "files": [str(file) for file in (*written, source)]})
        return
    write_text("\n".join(str(file) for file in (*written, source)))
    step = "" if path.resolve() == Path.cwd() else f"cd {shown} && "
    say(f"\nnext:  {step}flow run --all")
