"""Each page of `flow web` in a real browser: it shows its contents, to everybody, on every screen."""

from __future__ import annotations

import json
from urllib.parse import quote

import pytest
from playwright.sync_api import Page

from tests.services import axe
from tests.web.conftest import PHONE, READER, Open, Site
from tests.web.project import HOSTILE

PAGES = {
    "/": "daily_revenue",
    "/?q=tag:hourly": "customers",
    "/pipelines/orders": "Pause the schedule",
    "/pipelines/orders?view=about": "Incremental by",
    "/graph": "nodes",
    "/graph?view=list": "warehouse:main.orders",
    "/runs": "not a number",
    "/runs?status=failed&text=amount": "payments",
    "/runs/{failed}": "the target is as before",
    "/runs/{succeeded}": "analyze",
    "/runs/{succeeded}?view=log": "not bold",
    "/runs/{succeeded}?view=ledger": "warehouse:main.orders",
    "/runs/{running}": "running",
    "/streams": "clicks",
    "/streams/clicks": "There are no samples",
    "/dead-letters": "There are no dead letters",
    "/schedule": "gave up",
    "/workflows": "nightly",
    "/connections": "shop.db",
    "/actions": "Nobody has asked",
}


@pytest.fixture(scope="module")
def axe_script() -> str:
    return axe.script()


def _path(path: str, site: Site) -> str:
    return path.format(**vars(site.project))


def _violations(page: Page, *, rule: str | None = None) -> list[str]:
    only = "" if rule is None else f", runOnly: {{type: 'rule', values: ['{rule}']}}"
    found = page.evaluate(f"() => axe.run(document, {{resultTypes: ['violations']{only}}})")
    return [
        f"{each['id']}: {each['help']}: {json.dumps([node['html'][:200] for node in each['nodes'][:3]])}"
        for each in found["violations"]
    ]


@pytest.mark.parametrize("path", PAGES)
def test_a_page_shows_its_contents_without_an_error_or_a_violation(
    visit: Open, site: Site, axe_script: str, path: str
) -> None:
    visited = visit(site, color_scheme="light")
    page = visited.open(_path(path, site))
    page.get_by_text(PAGES[path]).first.wait_for()
    page.evaluate(axe_script)
    assert _violations(page) == []
    page.emulate_media(color_scheme="dark")
    assert _violations(page, rule="color-contrast") == []
    page.set_viewport_size(PHONE)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    assert visited.problems == []


def test_pages_ask_no_other_host(visit: Open, site: Site) -> None:
    visited = visit(site)
    asked: list[str] = []
    visited.page.on("request", lambda request: asked.append(request.url))
    for path in ("/", "/graph", "/streams/clicks"):
        visited.open(path)
    assert asked
    assert [url for url in asked if not url.startswith(site.address)] == []


def test_names_errors_and_logs_are_shown_as_text(visit: Open, site: Site) -> None:
    visited = visit(site)
    page = visited.open("/")
    page.get_by_role("link", name=HOSTILE).first.click()
    page.get_by_role("heading", name=HOSTILE, level=1).wait_for()
    assert page.locator("img[src=x]").count() == 0
    assert visited.problems == []


def test_a_failing_pipeline_stands_first(visit: Open, site: Site) -> None:
    page = visit(site).open("/")
    rows = page.locator("table tbody tr")
    assert {rows.nth(number).locator(".cell-main").inner_text() for number in range(2)} == {
        "payments",
        HOSTILE,
    }
    page.get_by_role("button", name="Failing 2").click()
    page.wait_for_url("**/?state=failing")
    assert rows.count() == 2


def test_filters_live_in_the_address_and_survive_a_reload(visit: Open, site: Site) -> None:
    page = visit(site).open("/runs")
    page.get_by_label("Status").select_option("failed")
    page.wait_for_url("**/runs?status=failed")
    page.reload()
    page.get_by_text("not a number").first.wait_for()
    assert page.get_by_label("Status").input_value() == "failed"


def test_a_wrong_selector_is_an_error_with_its_next_step(visit: Open, site: Site) -> None:
    page = visit(site).open("/")
    page.get_by_label("Search, or a selector").fill("tag:nihgtly")
    page.get_by_role("group", name="Error").wait_for()
    assert "nihgtly" in page.get_by_role("group", name="Error").inner_text()


def test_a_run_that_does_not_exist_says_what_to_do(visit: Open, site: Site) -> None:
    page = visit(site).open("/runs/ffffffff")
    assert "flow runs list" in page.get_by_role("group", name="Error").inner_text()


def test_a_reader_sees_why_nothing_can_be_changed(visit: Open, site: Site) -> None:
    page = visit(site, token=READER).open("/pipelines/orders")
    page.get_by_text("Reading only.").wait_for()
    page.get_by_text("No action is possible now").click()
    button = page.get_by_role("button", name="Run", exact=True)
    assert button.get_attribute("aria-disabled") == "true"
    button.click(force=True)
    assert page.get_by_role("dialog").count() == 0


def test_without_a_session_the_page_asks_for_the_token(visit: Open, site: Site) -> None:
    visited = visit(site, token=None)
    page = visited.page
    page.goto(site.address + "/runs")
    page.get_by_label("Token").fill("wrong-token-0123456789")
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("group", name="Error").wait_for()
    page.get_by_label("Token").fill(READER)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("heading", name="Runs").wait_for()


@pytest.mark.parametrize("given", ["token=wrong-token-0123456789", "code=wrong"])
def test_a_wrong_token_in_the_address_is_reported(visit: Open, site: Site, given: str) -> None:
    page = visit(site, token=None).page
    page.goto(site.address + f"/?{given}")
    page.get_by_text("the token or the code in the address is not valid").wait_for()
    page.get_by_label("Token").fill(READER)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("heading", name="Pipelines").wait_for()
    page.wait_for_url(f"{site.address}/")


def test_a_name_with_a_slash_is_a_page(visit: Open, site: Site) -> None:
    visited = visit(site)
    page = visited.open(f"/pipelines/{quote(HOSTILE, safe='')}")
    page.get_by_role("heading", name=HOSTILE, level=1).wait_for()
    page.get_by_role("button", name="Run", exact=True).wait_for()
    page.get_by_role("button", name="Plan").click()
    page.wait_for_url("**view=plan")
    assert page.get_by_text("there is no GET").count() == 0
    assert visited.problems == []


def test_times_are_utc_with_local_time_next_to_them(visit: Open, site: Site) -> None:
    page = visit(site).open(f"/runs/{site.project.succeeded}")
    shown = page.locator("main time").first.inner_text()
    assert "UTC" in shown
    assert "CE" in shown  # CET or CEST


def test_the_theme_can_be_chosen_and_stays(visit: Open, site: Site) -> None:
    page = visit(site, color_scheme="light").open("/")
    page.get_by_role("button", name="Colours: as the system").click()
    page.get_by_role("button", name="Colours: light").click()
    page.reload()
    page.get_by_role("button", name="Colours: dark").wait_for()
    assert page.evaluate("getComputedStyle(document.documentElement).colorScheme") == "dark"
