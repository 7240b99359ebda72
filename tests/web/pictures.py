"""``python -m tests.web.pictures`` makes the documentation's pictures of the pages: docs/assets/web-*.png.

They show the invented project of web-ui/dev, which has every state. Node and Chromium must be there.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from playwright.sync_api import sync_playwright

from tests.services import chromium
from tests.services.npm import node
from tests.services.process import free_port

REPOSITORY = Path(__file__).resolve().parents[2]
FOLDER = REPOSITORY / "docs" / "assets"
SIZE = {"width": 1200, "height": 740}


@contextmanager
def _invented_project() -> Iterator[str]:
    """The development server, and its address."""
    port = free_port()
    command = [
        node(),
        str(REPOSITORY / "web-ui" / "dev" / "server.mjs"),
        "--port",
        str(port),
        "--pipelines",
        "40",
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        found = re.search(r"http://\S+", process.stdout.readline())
        assert found
        yield found[0]
    finally:
        process.terminate()
        process.wait(30)


def _newest_run(address: str, status: str) -> str:
    """A run of a pipeline with this status; one that works has progress."""
    with urlopen(f"{address}/api/v1/runs?status={status}&limit=200", timeout=30) as answer:
        runs: list[dict[str, Any]] = json.load(answer)["items"]
    return next(
        run["run_id"]
        for run in runs
        if run["trigger"] == "schedule" and (status != "running" or run["metrics"].get("progress"))
    )


def main() -> int:
    with (
        _invented_project() as address,
        chromium.running_server() as browser,
        sync_playwright() as playwright,
    ):
        shown = {
            "web-pipelines": ("/", "light"),
            "web-run-failed": (f"/runs/{_newest_run(address, 'failed')}", "light"),
            "web-run-live": (f"/runs/{_newest_run(address, 'running')}", "dark"),
            "web-graph": ("/graph?focus=pipeline:daily_customers", "light"),
            "web-stream": ("/streams/order_events", "dark"),
            "web-schedule": ("/schedule", "light"),
        }
        connected = playwright.chromium.connect_over_cdp(browser.endpoint)
        for name, (path, scheme) in shown.items():
            context = connected.new_context(
                viewport=SIZE, color_scheme=scheme, timezone_id="Europe/Berlin", reduced_motion="reduce"
            )
            page = context.new_page()
            page.goto(address + path)
            page.locator("main h1").wait_for()
            page.wait_for_function("() => !document.querySelector('main .skeleton')")
            page.wait_for_load_state("load")
            page.wait_for_function("() => document.querySelector('.live:not(.polling)')")
            page.screenshot(path=FOLDER / f"{name}.png")
            context.close()
            print(f"docs/assets/{name}.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
