"""Every action of the page, from the click to the rows in the target, with a real server and scheduler.

The tests share one server for each store of the run log, and each test has its own pipelines. With a run log
in PostgreSQL those run that need its runs, actions, holds and slots together.
"""

from __future__ import annotations

import datetime as dt
import os
import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Locator, Page, expect

from ematix_flow.backends.state_stores.run_logs import open_slots
from ematix_flow.state.slots.base import Slot
from tests.services.postgres import PostgresServer
from tests.web.conftest import DESKTOP, PHONE, READER, Open, Visit
from tests.web.operating import ROWS, ShopSite, operated_shop

WAIT = 60_000
LINES_OF_TEXT = """cell => {
  const range = document.createRange()
  range.selectNodeContents(cell)
  return new Set([...range.getClientRects()].map(box => box.top)).size
}"""
SQLITE_ONLY = pytest.mark.parametrize("shop", ["sqlite"], indirect=True)


@pytest.fixture(scope="module", params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def shop(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShopSite]:
    folder = tmp_path_factory.mktemp("operating")
    if request.param == "sqlite":
        with operated_shop(folder, f"sqlite://{folder}/run_log.db") as served:
            yield served
        return
    postgres: PostgresServer = request.getfixturevalue("postgres")
    postgres.start()
    name = postgres.create_database("operating")
    with operated_shop(folder, postgres.url(name)) as served:
        yield served
    postgres.drop_database(name)


@pytest.fixture(autouse=True)
def patience() -> Iterator[None]:
    """A page shows a change when the run has made it, however busy the machine is."""
    expect.set_options(timeout=WAIT)
    yield
    expect.set_options(timeout=5_000)


def visited(visit: Open, shop: ShopSite, **settings: object) -> Visit:
    found = visit(shop, **settings)
    found.page.context.set_default_timeout(WAIT)
    return found


def act(page: Page, button: str, *, confirm: str | None = None, reason: str | None = None) -> None:
    """Click a button of the page and confirm what its dialog asks."""
    page.locator("main").get_by_role("button", name=button, exact=True).click()
    dialog = page.get_by_role("dialog")
    if reason is not None:
        dialog.get_by_label("Reason").fill(reason)
    dialog.get_by_role("button", name=confirm or button, exact=True).click()
    dialog.wait_for(state="detached")


def status(page: Page) -> Locator:
    """The status next to the title of the page."""
    return page.locator("main .page-head > .status")


def open_newest_run(page: Page, state: str) -> str:
    """Open the newest run from the page of its pipeline once it has this status, and return its id."""
    row = page.locator("main table tbody tr").first
    expect(row.locator(".status")).to_have_text(state)
    row.locator("a").first.click()
    page.wait_for_url("**/runs/*")
    return page.url.rpartition("/")[2]


def tile(page: Page, name: str) -> Locator:
    return page.locator("main .tile", has_text=name)


def stay(page: Page) -> None:
    """Mark the page, so that `has_stayed` knows whether it was loaded again."""
    page.evaluate("() => { window.marked = true }")


def has_stayed(page: Page) -> bool:
    return page.evaluate("() => window.marked === true") is True


def listed_action(found: Visit, subject: str, kind: str) -> Locator:
    """The newest row of this action on the page of actions, with who asked for it, and when."""
    page = found.open(f"/actions?subject={subject}")
    row = page.locator("main table tbody tr", has_text=kind).first
    row.wait_for()
    expect(row.locator("time")).to_contain_text("UTC")
    row.get_by_role("cell", name="operator web", exact=True).wait_for()
    return row


def test_a_run_with_what_depends_on_it_is_watched_from_its_start_to_its_end(
    visit: Open, shop: ShopSite
) -> None:
    found = visited(visit, shop)
    page = found.open("/pipelines/orders")
    stay(page)
    page.get_by_role("button", name="Run", exact=True).click()
    page.get_by_label("Then run what depends on it, in order").check()
    page.get_by_role("button", name="Run now").click()
    shop.wait_for_run_at_gate("orders")
    open_newest_run(page, "running")
    expect(status(page)).to_have_text("running")
    expect(tile(page, "Running for")).to_be_visible()
    page.get_by_role("heading", name="Timeline").wait_for()
    expect(page.locator(".gantt-row", has_text="wait_for_gate").locator(".is-open")).to_be_visible()
    shop.open_gate("orders")
    expect(status(page)).to_have_text("succeeded")
    expect(tile(page, "Took")).to_be_visible()
    expect(tile(page, "Rows changed")).to_contain_text("1,000 inserted")
    expect(page.locator(".gantt-bar.is-open")).to_have_count(0)
    page.locator(".tray").get_by_text("2 pipelines ended well").wait_for()
    assert has_stayed(page)
    expect(page.locator(".tray-item")).to_have_count(0)  # a notice of success goes by itself
    page.set_viewport_size(PHONE)
    name = page.locator("td.cell-main", has_text="shop:orders")
    assert name.evaluate(LINES_OF_TEXT) == 1
    page.set_viewport_size(DESKTOP)
    found.open("/pipelines/revenue")
    expect(status(page)).to_have_text("succeeded")
    assert (shop.count("Orders"), shop.count("Revenue")) == (ROWS, 50)
    row = listed_action(found, "orders", "Run now")
    expect(row).to_contain_text("with downstream")
    expect(row).to_contain_text("2 pipelines ended well")
    expect(row.locator(".status")).to_have_text("done")
    assert found.problems == []


@SQLITE_ONLY
def test_two_people_who_click_at_once_make_one_run(visit: Open, shop: ShopSite) -> None:
    both = [visited(visit, shop), visited(visit, shop)]
    for each in both:
        each.open("/pipelines/baskets").get_by_role("button", name="Run", exact=True).click()
    for each in both:
        each.page.get_by_role("button", name="Run now").click()
    shop.wait_for_run_at_gate("baskets")
    for each in both:
        expect(each.page.locator("main .button", has_text="Run …")).to_be_visible()
    shop.open_gate("baskets")
    for each in both:
        each.page.locator(".tray").get_by_text("1,000 inserted").wait_for()
    known = [each.page.get_by_text("had asked for this already").count() for each in both]
    assert sorted(known) == [0, 1]  # the second of them is told
    for each in both:
        expect(each.page.locator("main table tbody tr")).to_have_count(1)
    assert shop.count("Baskets") == ROWS
    listed_action(both[0], "baskets", "Run now")
    expect(both[0].page.locator("main table tbody tr")).to_have_count(1)


def test_a_failed_run_is_restarted_from_its_failed_step(visit: Open, shop: ShopSite) -> None:
    found = visited(visit, shop)
    page = found.open("/pipelines/payments")
    act(page, "Run", confirm="Run now")
    page.locator(".tray .status", has_text="Run now").locator(".tone-bad").wait_for()
    error = page.get_by_role("group", name="Error")
    cause = "no such table: payment_loads"
    for text in (cause, "shop.py", "the load before it is committed", "flow restart"):
        expect(error).to_contain_text(text)
    failed = open_newest_run(page, "failed")
    for text in (cause, "Where", "shop.py", "State", "committed", "Next", f"flow restart {failed[:8]}"):
        expect(error).to_contain_text(text)
    expect(page.locator("table", has_text="INSERT INTO payment_loads")).to_contain_text("failed")
    step = page.locator(".gantt-row", has_text="INSERT INTO payment_loads")
    expect(step.locator(".gantt-bar")).to_have_class(re.compile("fill-bad"))
    expect(tile(page, "Rows changed")).to_contain_text("1,000 inserted")
    shop.execute("CREATE TABLE payment_loads (n INTEGER)")
    act(page, "Restart from the failed step")
    asked = page.locator(".tray-item", has_text="Restart from the failed step")
    asked.get_by_role("link", name="Open run").click()
    page.wait_for_url(lambda url: failed not in url)
    expect(status(page)).to_have_text("succeeded")
    assert shop.count("Payments") == ROWS
    assert shop.execute("SELECT n FROM payment_loads") == [(ROWS,)]
    found.open("/pipelines/payments")
    expect(status(page)).to_have_text("succeeded")
    expect(error).to_have_count(0)
    expect(tile(page, "Rows in 14 days")).to_contain_text("1,000")
    page.get_by_text("Other actions, not possible now").click()
    pause = page.get_by_role("button", name="Pause the schedule")
    expect(pause).to_have_accessible_description("It has no schedule, and no workflow runs it.")
    row = listed_action(found, failed, "Restart from the failed step")
    expect(row.locator(".status")).to_have_text("done")
    expect(row).to_contain_text("payments")
    expect(listed_action(found, "payments", "Run now")).to_contain_text("no such table: payment_loads")


@SQLITE_ONLY
def test_a_run_that_is_stopped_leaves_nothing_of_what_it_had_not_committed(
    visit: Open, shop: ShopSite
) -> None:
    found = visited(visit, shop)
    page = found.open("/pipelines/slow")
    act(page, "Run", confirm="Run now")
    run = open_newest_run(page, "running")
    expect(page.locator(".gantt-bar.is-open")).to_be_visible()
    act(page, "Stop")
    expect(status(page)).to_have_text("cancelled")
    expect(page.get_by_role("group", name="Error")).to_contain_text("was stopped by")
    page.get_by_role("button", name="Restart from the failed step").wait_for()
    assert shop.count("Slow") == 0
    row = listed_action(found, run, "Stop")
    expect(row.locator(".status")).to_have_text("done")
    expect(row).to_contain_text("slow")
    expect(listed_action(found, "slow", "Run now")).to_contain_text("was stopped by")


@SQLITE_ONLY
def test_a_held_run_is_resumed_from_its_page(visit: Open, shop: ShopSite) -> None:
    found = visited(visit, shop)
    page = found.open("/pipelines/parcels")
    act(page, "Run", confirm="Run now")
    shop.wait_for_run_at_gate("parcels")
    open_newest_run(page, "running")
    stay(page)
    act(page, "Pause", reason="the parcels are counted")
    note = page.locator("main .note.held")
    expect(note).to_contain_text("before the post-load step INSERT INTO parcel_loads")
    expect(note).to_contain_text("the parcels are counted")
    expect(status(page)).to_have_text("held")
    assert shop.count("parcel_loads") == 0
    listed = visited(visit, shop)
    row = listed.open("/runs?pipeline=parcels").locator("main table tbody tr")
    expect(row.locator(".status")).to_have_text("held")
    act(page, "Resume")
    expect(row.locator(".status")).to_have_text("succeeded")
    expect(status(page)).to_have_text("succeeded")
    expect(note).to_have_count(0)
    assert has_stayed(page)
    assert shop.execute("SELECT n FROM parcel_loads") == [(ROWS,)]
    expect(listed_action(found, "parcels", "Pause")).to_contain_text("the parcels are counted")
    expect(listed_action(found, "parcels", "Resume").locator(".status")).to_have_text("done")


@SQLITE_ONLY
def test_an_incremental_pipeline_is_resumed_from_its_watermark(visit: Open, shop: ShopSite) -> None:
    found = visited(visit, shop)
    page = found.open("/pipelines/views")
    act(page, "Run", confirm="Run now")
    page.locator(".tray").get_by_text("2 inserted").wait_for()
    shop.execute("INSERT INTO raw_views VALUES (3), (4), (5)")
    act(page, "Resume from the watermark")
    page.locator(".tray").get_by_text("3 inserted").wait_for()
    open_newest_run(page, "succeeded")
    expect(tile(page, "Rows changed")).to_contain_text("3 inserted")
    assert shop.execute("SELECT view_id FROM Views ORDER BY 1") == [(n,) for n in range(1, 6)]
    row = listed_action(found, "views", "Resume from the watermark")
    expect(row).to_contain_text("3 inserted")


def open_due_slot(shop: ShopSite, *pipelines: str) -> None:
    """Open a slot of each, as the scheduler does when a schedule fires."""
    fired = dt.datetime.now(dt.timezone.utc).replace(second=0, microsecond=0) - dt.timedelta(minutes=1)
    with open_slots(shop.run_log, env=os.environ) as store:
        store.open([Slot(name, fired) for name in pipelines])


def test_a_slot_that_was_given_up_runs_again_once_when_it_is_cleared(visit: Open, shop: ShopSite) -> None:
    found = visited(visit, shop)
    page = found.open("/pipelines/returns")
    open_due_slot(shop, "returns")
    expect(status(page)).to_have_text("gave up")
    expect(page.get_by_role("group", name="Error")).to_contain_text("raw_returns")
    shop.execute("CREATE TABLE raw_returns AS SELECT * FROM raw_orders WHERE amount = 0")
    act(page, "Clear the slot")
    expect(status(page)).to_have_text("succeeded")
    open_newest_run(page, "succeeded")
    expect(tile(page, "Started by")).to_contain_text("schedule")
    expect(tile(page, "Started by")).to_contain_text("attempt 2")
    current = page.locator("main .gantt-row.is-current")
    expect(current).to_contain_text("attempt 2")
    expect(current).to_contain_text("succeeded")
    assert shop.count("Returns") == 20
    found.open("/pipelines/returns")
    expect(page.locator("main table tbody tr")).to_have_count(2)
    row = listed_action(found, "returns", "Clear the slot")
    expect(row).to_contain_text("1 slot of returns will run again")


def test_a_paused_schedule_starts_no_slot_until_it_is_resumed(visit: Open, shop: ShopSite) -> None:
    found = visited(visit, shop)
    page = found.open("/pipelines/refunds")
    act(page, "Pause the schedule", reason="the bank moves")
    expect(page.locator("main .note.held")).to_contain_text("the bank moves")
    expect(tile(page, "Next")).to_contain_text("schedule paused")
    open_due_slot(shop, "refunds", "vouchers")
    found.open("/pipelines/vouchers")
    expect(status(page)).to_have_text("succeeded")  # so the scheduler has looked at what is due
    found.open("/schedule")
    expect(page.locator(".card", has_text="To look at")).to_contain_text("the bank moves")
    found.open("/pipelines/refunds")
    page.get_by_text("It has not run yet").wait_for()
    act(page, "Resume the schedule")
    expect(status(page)).to_have_text("succeeded")
    expect(page.locator("main table tbody tr")).to_have_count(1)
    assert shop.count("Refunds") == ROWS
    for kind, outcome in (
        ("Pause the schedule", "no slot of refunds starts until its schedule is resumed"),
        ("Resume the schedule", "the schedule of refunds fires again"),
    ):
        expect(listed_action(found, "refunds", kind)).to_contain_text(outcome)


@SQLITE_ONLY
def test_a_reader_has_no_action_and_the_interface_refuses_one(visit: Open, shop: ShopSite) -> None:
    found = visited(visit, shop, token=READER)
    page = found.open("/pipelines/orders")
    page.get_by_text("Reading only.").wait_for()
    assert page.locator("main .action-list > button").count() == 0
    for each in page.locator("main .action-list button").all():
        assert each.get_attribute("aria-disabled") == "true"
    answer = page.context.request.post(
        f"{shop.address}/api/v1/actions",
        data={"kind": "run", "subject": "vouchers"},
        headers={"X-Requested-With": "ematix-flow", "Origin": shop.address},
    )
    assert (answer.status, answer.json()["error"]["what"]) == (403, "readers may only look")
    page = found.open("/actions?subject=vouchers")
    expect(page.locator("main .empty")).to_be_visible()


def test_a_held_run_is_still_held_after_the_server_was_killed(visit: Open, shop: ShopSite) -> None:
    """Last: the scheduler of the server that follows leads only when the lease of this one is over."""
    found = visited(visit, shop)
    page = found.open("/pipelines/held")
    act(page, "Run", confirm="Run now")
    shop.wait_for_run_at_gate("held")
    act(page, "Pause the run", confirm="Pause the run")
    note = page.locator("main .note.held")
    expect(note).to_contain_text("before the post-load step INSERT INTO held_loads")
    expect(status(page)).to_have_text("held")
    expect(page.locator("main table tbody tr .status")).to_have_text("held")
    stay(page)
    shop.kill()
    expect(page.locator(".side .live")).to_have_text("polling")
    shop.start()
    expect(page.locator(".side .live")).to_have_text("live")
    expect(status(page)).to_have_text("held")
    assert has_stayed(page)
    later = visited(visit, shop, viewport=PHONE)
    later.open("/pipelines/held")
    expect(status(later.page)).to_have_text("held")
    expect(later.page.locator("main .note.held")).to_contain_text("before the post-load step")
    act(later.page, "Resume the run")
    for each in (page, later.page):
        expect(status(each)).to_have_text("succeeded")
        expect(each.locator("main .note.held")).to_have_count(0)
    assert (shop.count("Held"), shop.execute("SELECT n FROM held_loads")) == (ROWS, [(ROWS,)])
    row = listed_action(found, "held", "Run now")
    expect(row.locator(".status")).to_have_text("done")
    expect(listed_action(found, "held", "Resume").locator(".status")).to_have_text("done")
