"""The pages by keyboard alone."""

from __future__ import annotations

from tests.web.conftest import PHONE, Open, Site


def test_the_first_tab_skips_the_navigation(visit: Open, site: Site) -> None:
    page = visit(site).open("/")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent.trim()") == "Skip to the page"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"


def test_each_element_with_the_focus_shows_it(visit: Open, site: Site) -> None:
    page = visit(site).open("/")
    for _ in range(25):
        page.keyboard.press("Tab")
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline == "solid", page.evaluate("document.activeElement.outerHTML")


def test_two_keys_go_to_a_page_and_rows_are_opened_by_keys(visit: Open, site: Site) -> None:
    page = visit(site).open("/")
    page.keyboard.press("g")
    page.keyboard.press("r")
    page.wait_for_url("**/runs")
    page.locator("table tbody tr").first.wait_for()
    page.keyboard.press("j")
    page.keyboard.press("j")
    name = page.locator("tr.is-cursor .cell-main").inner_text()
    page.keyboard.press("Enter")
    page.wait_for_url("**/runs/*")
    page.locator("main h1", has_text=name).wait_for()


def test_a_question_mark_lists_the_keys_and_escape_closes_the_list(visit: Open, site: Site) -> None:
    page = visit(site).open("/")
    page.keyboard.press("?")
    dialog = page.get_by_role("dialog", name="Keys")
    dialog.wait_for()
    assert "Search on this page" in dialog.inner_text()
    page.keyboard.press("Escape")
    dialog.wait_for(state="detached")


def test_keys_can_be_switched_off(visit: Open, site: Site) -> None:
    page = visit(site).open("/")
    page.keyboard.press("?")
    page.get_by_label("Use these keys").uncheck()
    page.keyboard.press("Escape")
    page.keyboard.press("?")
    assert page.get_by_role("dialog").count() == 0


def test_a_slash_goes_to_the_search_and_letters_are_typed_there(visit: Open, site: Site) -> None:
    page = visit(site).open("/")
    page.keyboard.press("/")
    page.keyboard.type("grow")
    page.get_by_text("No pipeline matches").wait_for()
    assert page.url.endswith("?q=grow")


def test_the_graph_is_moved_and_read_by_keys(visit: Open, site: Site) -> None:
    page = visit(site).open("/graph?focus=pipeline:daily_revenue")
    page.get_by_role("application").focus()
    page.keyboard.press("+")
    page.keyboard.press("Enter")
    page.wait_for_url("**/pipelines/daily_revenue")


def test_on_a_phone_the_menu_opens_and_closes(visit: Open, site: Site) -> None:
    page = visit(site, viewport=PHONE, has_touch=True).open("/")
    page.get_by_role("button", name="Menu").click()
    page.get_by_role("link", name="Schedule").click()
    page.wait_for_url("**/schedule")
    page.get_by_role("link", name="Schedule").wait_for(state="hidden")
