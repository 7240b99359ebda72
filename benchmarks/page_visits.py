"""How long a person waits for a page: visits of a real browser, each with an empty cache.

A visit ends when the page shows what the person came for, such as the newest run in the list of runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise

from playwright.sync_api import Browser, Page, sync_playwright

from tests.services import chromium

VISITS = 20
WAIT_MS = 60_000
DRAG_STEPS = 200
_RECORD_FRAMES = """() => {
  window.frameTimes = []
  const record = time => { window.frameTimes.push(time); requestAnimationFrame(record) }
  requestAnimationFrame(record)
}"""


@contextmanager
def browser() -> Iterator[Browser]:
    """Debian's Chromium, which is installed if it is missing."""
    chromium.install()
    with chromium.running_server() as server, sync_playwright() as playwright:
        connected = playwright.chromium.connect_over_cdp(server.endpoint)
        yield connected
        connected.close()


def seconds_of_visits(
    browser: Browser,
    address: str,
    is_shown: Callable[[Page], None],
    *,
    headers: dict[str, str] | None = None,
    visits: int = VISITS,
) -> list[float]:
    """The time of each visit: from the request of the address until ``is_shown`` returns."""
    return [_visit(browser, address, is_shown, headers or {}) for _ in range(visits)]


def seconds_of_first_paints(
    browser: Browser, address: str, *, headers: dict[str, str] | None = None, visits: int = VISITS
) -> list[float]:
    """When the browser first painted contents, by its own clock."""
    found: list[float] = []

    def painted(page: Page) -> None:
        page.wait_for_function("() => performance.getEntriesByName('first-contentful-paint').length > 0")
        milliseconds = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
        found.append(float(milliseconds) / 1000)

    seconds_of_visits(browser, address, painted, headers=headers, visits=visits)
    return found


def seconds_of_frames(
    browser: Browser, address: str, selector: str, *, headers: dict[str, str] | None = None
) -> list[float]:
    """The time between two frames while a drag moves this element to and fro."""
    found: list[float] = []

    def drag(page: Page) -> None:
        element = page.locator(selector).first
        element.wait_for()
        box = element.bounding_box()
        assert box is not None
        x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        page.mouse.move(x, y)
        page.mouse.down()
        page.evaluate(_RECORD_FRAMES)
        for step in range(DRAG_STEPS):
            page.mouse.move(x + 10 * (step % 20), y + 5 * (step % 20))
        times = page.evaluate("window.frameTimes")
        found.extend((later - earlier) / 1000 for earlier, later in pairwise(times))

    seconds_of_visits(browser, address, drag, headers=headers, visits=1)
    return found


def shows(selector: str) -> Callable[[Page], None]:
    """Wait until the first element of this CSS selector is visible."""
    return lambda page: page.locator(selector).first.wait_for()


def _visit(
    browser: Browser, address: str, is_shown: Callable[[Page], None], headers: dict[str, str]
) -> float:
    context = browser.new_context(viewport={"width": 1440, "height": 900}, extra_http_headers=headers)
    context.set_default_timeout(WAIT_MS)
    try:
        page = context.new_page()
        began = time.perf_counter()
        page.goto(address, wait_until="commit")
        is_shown(page)
        return time.perf_counter() - began
    finally:
        context.close()
