"""Nothing stands out of its card, at the widths of a desktop, a small window and a phone."""

from __future__ import annotations

import datetime as dt
import os
import uuid
from collections.abc import Iterator

import pytest

from ematix_flow.backends.state_stores.run_logs import open_actions, open_run_log
from ematix_flow.errors import LoadError
from ematix_flow.state.runlog.records import RunRecord
from tests.web.conftest import Open, Site, running_site
from tests.web.project import Project

WIDTHS = (1280, 1000, 390)
PAGES = (
    "/",
    "/pipelines/orders",
    "/pipelines/payments",
    "/pipelines/orders?view=about",
    "/graph?view=list",
    "/runs",
    "/runs/{failed}",
    "/runs/{succeeded}",
    "/runs/{running}",
    "/streams",
    "/streams/clicks",
    "/dead-letters",
    "/schedule",
    "/workflows",
    "/connections",
    "/actions",
)
ATTEMPTS = (uuid.uuid4().hex, uuid.uuid4().hex)
SCROLL_ON_A_PHONE = ("/graph?view=list", "/streams", "/connections")
OUTCOME = "run 0123456789abcdef0123456789abcdef of payments failed: the column amount is not a number: 'n/a'"

# elements that end outside their card, and are not within one that scrolls; and text that has no room
FIND_PROBLEMS = """mayScroll => {
  const problems = []
  if (document.documentElement.scrollWidth > innerWidth) problems.push('the page scrolls sideways')
  const scrolls = (each, card) => {
    for (let at = each.parentElement; at && at !== card; at = at.parentElement)
      if (getComputedStyle(at).overflowX !== 'visible') return true
    return false
  }
  const name = each => `${each.tagName}.${each.getAttribute('class') ?? ''} ${each.textContent.slice(0, 50)}`
  for (const card of document.querySelectorAll('.card')) {
    const end = card.getBoundingClientRect().right + 1
    for (const each of card.querySelectorAll('*')) {
      const box = each.getBoundingClientRect()
      if (box.width > 0 && box.right > end && !each.closest('.hidden-text') && !scrolls(each, card))
        problems.push(`outside its card: ${name(each)}`)
    }
    if (card.getBoundingClientRect().height < 20) problems.push(`an empty card: ${name(card)}`)
  }
  for (const table of mayScroll ? [] : document.querySelectorAll('.table-wrap'))
    if (table.scrollWidth > table.clientWidth + 1) problems.push(`a table scrolls sideways: ${name(table)}`)
  for (const cell of document.querySelectorAll('td')) {
    const box = cell.getBoundingClientRect()
    if (cell.textContent.length > 20 && box.width > 0 && box.width < 60)
      problems.push(`squeezed: ${name(cell)}`)
  }
  return problems
}"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A server with actions, a run with attempts, and a run log whose place is a long text."""
    folder = tmp_path_factory.mktemp("a-folder-with-a-name-that-is-much-longer-than-the-navigation-is-wide")
    with running_site(folder, prepare=add_attempts_and_actions) as started:
        yield started


def add_attempts_and_actions(run_log: str, project: Project) -> None:
    """Two attempts at one slot, and two actions that have ended."""
    now = dt.datetime.now(dt.timezone.utc)
    slot = now.replace(minute=0, second=0, microsecond=0) - dt.timedelta(hours=3)
    with open_run_log(run_log, env=os.environ) as log:
        for attempt, run_id in enumerate(ATTEMPTS, 1):
            record = RunRecord(
                run_id,
                "customers",
                "warehouse:main.orders",
                "truncate",
                trigger="schedule",
                started_at=slot + dt.timedelta(minutes=attempt),
                slot=slot,
                attempt=attempt,
            )
            log.start(record)
            log.finish(run_id, "failed", error=LoadError("the disk is full"))
    with open_actions(run_log, env=os.environ) as actions:
        for kind, subject, arguments, by in (
            ("run", "payments", {"with_downstream": True}, "ada"),
            ("restart", project.failed, {}, "grace"),
        ):
            requested, _ = actions.request(kind, subject, arguments, by=by, via="web")  # type: ignore[arg-type]
            claimed = actions.claim(requested, "this test", 60)
            assert claimed is not None and actions.begin(claimed, 60)
            assert actions.end(claimed, "failed", OUTCOME)


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_is_wider_than_its_card(visit: Open, site: Site, width: int) -> None:
    visited = visit(site, viewport={"width": width, "height": 900})
    found = {}
    for path in (*PAGES, "/runs/" + ATTEMPTS[0]):
        page = visited.open(path.format(**vars(site.project)))
        found[path] = page.evaluate(FIND_PROBLEMS, width == 390 and path in SCROLL_ON_A_PHONE)
    assert {path: problems for path, problems in found.items() if problems} == {}


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("hour", [0, 18])
def test_the_hours_of_the_schedule_end_within_their_card(
    visit: Open, site: Site, width: int, hour: int
) -> None:
    """Shortly after a labelled hour, another one lies shortly before the end of the line of time."""
    visited = visit(site, viewport={"width": width, "height": 900})
    now = dt.datetime.now(dt.timezone.utc).replace(hour=hour, minute=10)
    visited.page.clock.set_fixed_time(now)
    page = visited.open("/schedule")
    assert page.locator(".lane-tick").count() > 10
    assert page.evaluate(FIND_PROBLEMS, False) == []


@pytest.mark.parametrize("width", WIDTHS)
def test_the_time_of_each_attempt_is_shown_whole(visit: Open, site: Site, width: int) -> None:
    visited = visit(site, viewport={"width": width, "height": 900})
    page = visited.open(f"/runs/{ATTEMPTS[0]}")
    name = page.locator(".gantt-name", has_text="attempt 1")
    assert " ago" in name.inner_text()
    assert name.evaluate("each => each.scrollWidth <= each.clientWidth")


def test_a_long_place_of_the_run_log_ends_in_an_ellipsis(visit: Open, site: Site) -> None:
    page = visit(site).open("/")
    place = page.locator(".side dd", has_text="sqlite:")
    assert place.evaluate("each => each.scrollWidth > each.clientWidth")
    assert place.evaluate("each => getComputedStyle(each).textOverflow") == "ellipsis"
    assert place.evaluate(
        "each => each.getBoundingClientRect().right <= each.closest('.side').getBoundingClientRect().right"
    )


def test_an_action_on_a_run_names_its_pipeline_and_short_ids(visit: Open, site: Site) -> None:
    page = visit(site).open("/actions")
    row = page.locator("tbody tr", has_text="grace")
    row.get_by_role("link", name="payments", exact=True).wait_for()
    assert site.project.failed[:8] in row.inner_text()
    assert "01234567 of payments" in row.inner_text()
    assert "0123456789abcdef" not in page.locator("table").inner_text()
