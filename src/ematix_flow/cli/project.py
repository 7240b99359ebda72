"""The project that a command runs in: its module, its pipelines, its run log."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ematix_flow.errors import UsageError
from ematix_flow.graph.registry import Registry

if TYPE_CHECKING:
    from ematix_flow.state.runlog.base import RunLog

MODULE_VARIABLE = "EMATIX_FLOW_MODULE"


def load_project(module: str | None) -> Registry:
    """Import the user's module and return what it declares."""
    from ematix_flow.config import project_settings
    from ematix_flow.graph.connections import mask_defined_secrets
    from ematix_flow.graph.module_loading import load_module

    name = require_module(module)
    project_settings()  # raises an error if the file cannot be read
    mask_defined_secrets()
    return load_module(name)


def require_module(module: str | None) -> str:
    """The module of ``--module``, the environment or ``[project] module``. Raises UsageError without one."""
    name = configured_module(module)
    if name:
        return name
    from ematix_flow.graph.module_loading import python_files

    here = python_files(Path.cwd())
    found = f"Python files here: {', '.join(here)}" if here else f"there is no .py file in {Path.cwd()}"
    example = here[0] if here else "pipelines.py"
    raise UsageError(
        "no module is given",
        state=found,
        next_step=f'give --module {example}, or write  [project] module = "{Path(example).stem}"  '
        "into .ematix-flow.toml",
    )


def configured_module(module: str | None) -> str | None:
    """The configured module, or None."""
    from ematix_flow.config.project_file import text_setting

    return module or os.environ.get(MODULE_VARIABLE) or text_setting("project", "module")


def resolve_pipelines(
    registry: Registry,
    names: Sequence[str] | None,
    *,
    everything: bool = False,
    select: Sequence[str] | None = None,
    exclude: Sequence[str] | None = None,
    with_upstream: bool = False,
    by_default: bool = False,
) -> list[str]:
    """The pipelines that a command works on, upstreams first. Names are selectors too.

    Without names and ``select`` it is all pipelines if there is an ``exclude``, or with ``by_default``.
    """
    from ematix_flow.graph.selection import select as selected

    wanted = [*(names or ()), *(select or ())]
    if wanted and everything:
        given = "names" if names else "--select"
        raise UsageError(
            f"give {given} or --all, not both", next_step="for all but some:  --all --exclude NAME"
        )
    if not wanted and not everything and not exclude and not by_default:
        raise UsageError(
            "no pipeline is named",
            next_step=f"give one of: {_list_names(registry.pipelines)}, or --all, or --select tag:…",
        )
    if not registry.pipelines and not any(name in registry.streams for name in wanted):
        step = "declare one with @ematix.pipeline"
        if registry.streams:
            step = "flow consume --all  follows its streams"
        raise UsageError("the module declares no pipeline", next_step=step)
    return selected(registry, wanted or ["*"], exclude or (), with_upstream=with_upstream)


def resolve_pipeline_filter(
    registry: Registry,
    names: Sequence[str] | None,
    select: Sequence[str] | None,
    exclude: Sequence[str] | None,
) -> frozenset[str] | None:
    """The selected pipelines; None without a selection, which means all."""
    if not names and not select and not exclude:
        return None
    return frozenset(resolve_pipelines(registry, names, select=select, exclude=exclude))


def resolve_streams(registry: Registry, names: Sequence[str], *, everything: bool) -> list[str]:
    """The streams that a command works on, each once. Unknown names get a suggestion."""
    if names and everything:
        raise UsageError("give names or --all, not both")
    if not registry.streams:
        raise UsageError(
            "the module declares no streaming pipeline",
            next_step="declare one with @ematix.streaming_pipeline, or give a TOML file",
        )
    if not names and not everything:
        raise UsageError(
            "no streaming pipeline is named",
            next_step=f"give one of: {_list_names(registry.streams)}, or --all",
        )
    wanted = list(registry.streams) if everything else [registry.stream(n).spec.name for n in names]
    return list(dict.fromkeys(wanted))


def read_run_log(url: str | None, *, read_only: bool = True) -> RunLog:
    """Open the run log for a command that shows it. Raises an error if it cannot be opened.

    A command that also changes the run log passes ``read_only=False``: it is then created or upgraded first.
    """
    from ematix_flow.backends.state_stores.run_logs import open_run_log
    from ematix_flow.state.runlog.base import project_run_log

    return open_run_log(url or project_run_log(os.environ), env=os.environ, reading=True, read_only=read_only)


def complete_pipelines(ctx: Any, args: list[str], incomplete: str) -> list[str]:
    """Pipeline names for the shell's completion; none when the module cannot be imported."""
    try:
        return sorted(load_project(ctx.params.get("module")).pipelines)
    except Exception:
        return []


def complete_streams(ctx: Any, args: list[str], incomplete: str) -> list[str]:
    """Stream names for the shell's completion. The shell itself completes TOML files."""
    try:
        return sorted(load_project(ctx.params.get("module")).streams)
    except Exception:
        return []


def _list_names(names: Iterable[str]) -> str:
    listed = list(names)
    return ", ".join(listed[:8]) + (", …" if len(listed) > 8 else "") if listed else "(none is declared)"
