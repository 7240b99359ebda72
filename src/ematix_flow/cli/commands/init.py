"""``flow init``: creates a project that runs at once, and the files to deploy it."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Annotated

import typer

from ematix_flow.cli.command_group import new_app
from ematix_flow.cli.options import OutputOption
from ematix_flow.cli.output import write_json, write_text
from ematix_flow.cli.terminal import say
from ematix_flow.errors import UsageError, did_you_mean

app = new_app()

_REQUIREMENTS = "requirements.txt"
_PROJECT = ("pipelines.py.txt", "sample_data.py", "project.toml", "gitignore", "README.md", _REQUIREMENTS)
# what can be written: the folder of its templates, and their names
_PARTS = {
    "project": ("starter", _PROJECT),
    "docker": ("docker", ("Dockerfile", "dockerignore")),
    "systemd": ("systemd", ("flow.service", "flow-run-due.service", "flow-run-due.timer")),
    "kubernetes": ("kubernetes", ("cronjob.yaml", "scheduler.yaml")),
    "github": ("github", ("flow.yml",)),
}
_ALIASES = {"k8s": "kubernetes"}


@app.command()
def init(
    path: Annotated[Path, typer.Argument(metavar="PATH", hidden=True)] = Path("."),
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only",
            metavar="PART",
            help=f"Write only these parts: {', '.join(_PARTS)}; separate several by commas. "
            "Use it to add parts to an existing project.",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace existing files.")] = False,
    output: OutputOption = "text",
) -> None:
    """Create a project in PATH (by default here): two pipelines and a small source to run them on.

    It includes a Dockerfile, systemd units, Kubernetes manifests and a GitHub workflow.
    """
    from ematix_flow.cli.scaffolds import write_scaffold
    from ematix_flow.cli.scaffolds.starter import sample_data

    parts = _selected_parts(only)
    shown = shlex.quote(os.path.relpath(path))
    again = f"flow init {shown}" + ("" if only is None else f" --only {','.join(parts)}")
    scaffolds = dict(_PARTS[part] for part in parts)
    if "project" not in parts and not (path / _REQUIREMENTS).exists():
        scaffolds["starter"] = (_REQUIREMENTS,)  # every deployment installs it
    written = write_scaffold(
        scaffolds,
        path,
        force=force,
        next_step=f"replace them with  {again} --force,  or choose other parts with --only",
    )
    if "project" in parts:
        source = path / sample_data.DATABASE
        sample_data.create(str(source))
        written.append(source)
    if output == "json":
        write_json({"path": str(path.resolve()), "files": [str(file) for file in written]})
        return
    write_text("\n".join(str(file) for file in written))
    if "project" in parts:
        step = "" if path.resolve() == Path.cwd() else f"cd {shown} && "
        say(f"\nnext:  {step}flow run --all")
    else:
        say("\nnext:  read the first lines of each file: they explain how to use it")


def _selected_parts(only: list[str] | None) -> list[str]:
    """The named parts, each once; all parts by default."""
    if only is None:
        return list(_PARTS)
    names = [name.strip() for given in only for name in given.split(",") if name.strip()]
    parts = list(dict.fromkeys(_ALIASES.get(name, name) for name in names))
    for part in parts:
        if part not in _PARTS:
            raise UsageError(f"there is no part {part!r}.{did_you_mean(part, _PARTS)}")
    if not parts:
        raise UsageError("--only names no part", next_step=f"parts: {', '.join(_PARTS)}")
    return parts
