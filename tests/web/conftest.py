"""A real `flow web` over a small project with runs, and pages of one browser."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, sync_playwright

from tests.services.chromium import Chromium
from tests.services.shared import shared_server
from tests.web.project import MODULE, Project, fill_run_log

OPERATOR, READER = "operator-token-0123456789", "reader-token-0123456789"
DESKTOP, PHONE = {"width": 1440, "height": 900}, {"width": 390, "height": 844}
WAIT = 20_000


@dataclass(frozen=True)
class Site:
    """A running `flow web`."""

    address: str
    project: Project
    folder: Path


@contextmanager
def running_site(
    folder: Path, *options: str, prepare: Callable[[str, Project], None] = lambda run_log, project: None
) -> Iterator[Site]:
    """Start `flow web` in the folder of a project; ``prepare`` adds to its run log."""
    (folder / "shop.py").write_text(MODULE, encoding="utf-8")
    run_log = f"sqlite://{folder}/run_log.db"
    project = fill_run_log(run_log)
    prepare(run_log, project)
    environment = {
        **os.environ,
        "HOME": str(folder),
        "EMATIX_FLOW_HOME": str(folder / "home"),
        "EMATIX_FLOW_WEB_TOKEN": OPERATOR,
        "EMATIX_FLOW_WEB_READER_TOKEN": READER,
    }
    command = [sys.executable, "-m", "ematix_flow", "web", "--module", "shop", "--run-log", run_log]
    command += ["--port", "0", *options]
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        yield Site(_printed_address(process), project, folder)
    finally:
        process.terminate()
        process.communicate(timeout=30)


def _printed_address(process: subprocess.Popen[str]) -> str:
    """The address that the server prints once it listens."""
    printed = []
    for line in process.stdout or ():
        printed.append(line)
        if found := re.search(r"http://[\w.:]+", line):
            return found[0].rstrip("/")
    raise AssertionError(f"flow web ended: {''.join(printed)}")


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """One server for the tests that change nothing."""
    with running_site(tmp_path_factory.mktemp("web")) as started:
        yield started


@pytest.fixture(scope="session")
def chromium() -> Iterator[Chromium]:
    """The browser's process, which the workers of this run share."""
    with shared_server("chromium") as started:
        yield started


@pytest.fixture(scope="module")
def browser(chromium: Chromium) -> Iterator[Browser]:
    """A connection to the browser. While it is open an event loop counts as running in this thread.

    It ends with the module, so that later tests of this process can run an event loop.
    """
    with sync_playwright() as playwright:
        connected = playwright.chromium.connect_over_cdp(chromium.endpoint)
        yield connected
        connected.close()


class Served(Protocol):
    """A server that a page is opened from."""

    @property
    def address(self) -> str: ...


@dataclass
class Visit:
    """A page that is signed in, and what its console said."""

    page: Page
    site: Served
    problems: list[str] = field(default_factory=list)

    def open(self, path: str) -> Page:
        """Go to a page and wait until its contents are there."""
        self.page.goto(self.site.address + path)
        self.page.locator("main h1").wait_for()
        self.page.wait_for_function("() => !document.querySelector('main .skeleton')")
        return self.page


Open = Callable[..., Visit]


@pytest.fixture
def visit(browser: Browser) -> Iterator[Open]:
    """Open a page in its own context, signed in with a token."""
    contexts = []

    def start(site: Served, *, token: str | None = OPERATOR, **settings: Any) -> Visit:
        context = browser.new_context(**{"viewport": DESKTOP, "timezone_id": "Europe/Berlin", **settings})
        context.set_default_timeout(WAIT)
        contexts.append(context)
        if token is not None:
            answer = context.request.post(
                f"{site.address}/api/v1/session",
                data={"token": token},
                headers={"X-Requested-With": "ematix-flow", "Origin": site.address},
            )
            assert answer.ok, answer.text()
        page = context.new_page()
        found = Visit(page, site)

        def note(message: ConsoleMessage) -> None:
            if message.type in ("error", "warning"):
                found.problems.append(message.text)

        page.on("console", note)
        page.on("pageerror", lambda error: found.problems.append(str(error)))
        return found

    yield start
    for context in contexts:
        context.close()
