"""Buttons of the pages do what they say, through a real `flow web`."""

from __future__ import annotations

import datetime as dt
import os
import uuid
from collections.abc import Iterator

import pytest

from ematix_flow.backends.state_stores.run_logs import open_run_log
from ematix_flow.errors import LoadError
from ematix_flow.state.runlog.records import RunRecord
from tests.web.conftest import Open, Site, running_site
from tests.web.project import Project

RESTARTABLE = uuid.uuid4().hex


def add_failed_run(run_log: str, project: Project) -> None:
    """A run that can be restarted, of a pipeline whose slot was given up."""
    with open_run_log(run_log, env=os.environ) as log:
        record = RunRecord(
            RESTARTABLE,
            "daily_revenue",
            "warehouse:main.orders",
            "truncate",
            started_at=dt.datetime.now(dt.timezone.utc),
            batch="2026-01-31T06:00:00+00:00",
        )
        log.start(record)
        error = LoadError("the disk is full", state="two rows were loaded", next_step="make room")
        log.finish(record.run_id, "failed", error=error)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A server for the tests that change something."""
    with running_site(tmp_path_factory.mktemp("web-actions"), prepare=add_failed_run) as started:
        yield started


def test_a_schedule_is_paused_with_a_reason_and_resumed(visit: Open, site: Site) -> None:
    visited = visit(site)
    page = visited.open("/pipelines/customers")
    page.get_by_role("button", name="Pause the schedule").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Reason").fill("the shop <moves>")
    dialog.get_by_role("button", name="Pause the schedule").click()
    page.get_by_text("the shop <moves>").wait_for()
    page.get_by_role("button", name="Resume the schedule").click()
    page.get_by_role("dialog").get_by_role("button", name="Resume the schedule").click()
    page.get_by_role("button", name="Pause the schedule").wait_for()
    visited.open("/actions")
    assert page.locator("table tbody tr").count() == 2
    assert visited.problems == []


def test_nothing_changes_before_the_confirmation(visit: Open, site: Site) -> None:
    visited = visit(site)
    page = visited.open("/pipelines/payments")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(f"{request.method} {request.url}"))
    page.get_by_role("button", name="Run", exact=True).click()
    page.get_by_role("button", name="Cancel").click()
    assert page.get_by_role("dialog").count() == 0
    assert [each for each in asked if each.startswith("POST")] == []


def test_a_failed_pipeline_offers_its_restart_first_and_warns_of_a_run(visit: Open, site: Site) -> None:
    page = visit(site).open("/pipelines/daily_revenue")
    page.get_by_role("button", name="Restart from the failed step").wait_for()
    primary = page.locator("main .button.primary")
    assert primary.all_inner_texts() == ["Restart from the failed step"]
    error = page.get_by_role("group", name="Error").inner_text()
    assert "two rows were loaded" in error
    assert "make room" in error
    page.get_by_role("button", name="Run", exact=True).click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_text("may load rows again").wait_for()
    dialog.get_by_role("link", name=f"Run {RESTARTABLE[:8]}").click()
    page.wait_for_url(f"**/runs/{RESTARTABLE}")


def test_a_pipeline_that_did_not_fail_is_run_without_a_warning(visit: Open, site: Site) -> None:
    page = visit(site).open("/pipelines/orders")
    assert page.locator("main .button.primary").all_inner_texts() == ["Run"]
    page.get_by_role("button", name="Run", exact=True).click()
    assert "may load rows again" not in page.get_by_role("dialog").inner_text()


def test_the_page_says_when_its_module_has_changed(visit: Open, site: Site) -> None:
    module = site.folder / "shop.py"
    before = module.read_text(encoding="utf-8")
    page = visit(site).open("/")
    module.write_text(f"{before}\n# changed\n", encoding="utf-8")
    page.get_by_text("shop.py has changed since flow web started").wait_for()
