"""``flow demo``: writes a small project and runs it twice."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from ematix_flow.cli.command_group import new_app
from ematix_flow.cli.options import EngineOption, OutputOption
from ematix_flow.cli.output import write_json

app = new_app()


@app.command()
def demo(
    folder: Annotated[
        Path, typer.Option("--dir", metavar="DIR", help="Where to write the project.", show_default=True)
    ] = Path("flow-demo"),
    force: Annotated[
        bool, typer.Option("--force", help="Replace existing files, even changed ones.")
    ] = False,
    web: Annotated[
        bool, typer.Option("--web", help="Then serve the page over its runs, and open it in the browser.")
    ] = False,
    engine: EngineOption = None,
    output: OutputOption = "text",
) -> int:
    """Write a small project and run it twice, with changed source data in between.

    You see an append, a refresh, a skip because nothing was new, and a failure with its error. It needs no
    server and no network, and takes a minute or two. With --web it ends with a page to look at until Ctrl-C.
    """
    from ematix_flow.cli.demo.runner import Demo
    from ematix_flow.cli.signals import interruptible

    if web:
        from ematix_flow.cli.served_site import needs_extra

        with needs_extra("flow demo --web", "web"):  # now, not after two minutes
            import ematix_flow.web.server  # noqa: F401
    # with --output json, stdout is for the result
    project = Demo(folder, force=force, engine=engine, stream=sys.stderr if output == "json" else sys.stdout)
    with interruptible():
        project.run()
    if output == "json":
        write_json(project.to_json())
    if not project.went_as_planned:
        return 1
    if web:
        _become_flow_web(folder)
    return 0


def _become_flow_web(folder: Path) -> None:
    """Replace this process by `flow web` in the project: it needs neither Spark nor what was imported."""
    from ematix_flow.engine.spark.session import stop_session

    stop_session()
    sys.stdout.flush()
    sys.stderr.flush()
    command = [sys.executable, "-m", "ematix_flow", "web", "--module", "pipelines.py", "--port", "0"]
    os.chdir(folder)
    os.execv(sys.executable, [*command, *(["--open"] if _has_browser() else [])])


def _has_browser() -> bool:
    """Whether a browser would open in a window. A browser in the terminal would hide the address."""
    has_desktop = sys.platform in ("darwin", "win32")
    return has_desktop or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))
