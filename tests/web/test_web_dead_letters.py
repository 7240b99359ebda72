"""Dead letters of a real stream: a page shows them, and its buttons replay, park and purge them."""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page

from tests.services.kafka import KafkaServer
from tests.stream_runs import produce
from tests.web.conftest import Open, Site, running_site
from tests.web.project import Project

MODULE = """
from ematix_flow import Annotated, BigInt, Text, ematix, pk

@ematix.connection
class bus:
    kind = "kafka"
    bootstrap_servers = "{bootstrap}"

@ematix.connection
class warehouse:
    kind = "sqlite"
    path = "warehouse.db"

@ematix.table(schema="main")
class Clicks:
    id: Annotated[BigInt, pk()]
    note: Text

@ematix.streaming_pipeline(
    source="bus", source_query="{topic}", source_columns=Clicks, target=Clicks, target_connection="warehouse",
    expectations=[ematix.expect_or_drop("known", lambda t: t.foreign_key("id", references="known"))],
    transform_on_error="dlq", quarantine=ematix.DEAD_LETTERS,
)
def clicks():
    "Clicks of known customers."
"""
REASON = "the row fails the expectation 'known'"
SPARK_WAIT = 240_000  # milliseconds: the action's process starts Spark


def sql(folder: Path, statement: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(folder / "warehouse.db")) as database, database:
        return database.execute(statement).fetchall()


def flow(folder: Path, *arguments: str) -> None:
    """Run a command in the folder of the project, with its run log."""
    command = [sys.executable, "-m", "ematix_flow", *arguments, "--module", "shop"]
    command += ["--run-log", f"sqlite://{folder}/run_log.db"]
    done = subprocess.run(command, cwd=folder, env=os.environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def letter(page: Page, position: int) -> Locator:
    """The row of the letter of the message with this position."""
    return page.get_by_role("row").filter(has_text=re.compile(rf"partition 0, {position}(?!\d)"))


def ask(page: Page, label: str, confirm: str, *, within: str | None = None) -> None:
    """Press a button, and confirm what it asks. ``within`` names the part of the page that has the button."""
    place = page.locator("main") if within is None else page.get_by_label(within)
    place.get_by_role("button", name=label, exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name=confirm).click()


@pytest.mark.slow
def test_letters_of_a_stream_are_replayed_parked_and_purged_by_their_buttons(
    visit: Open, kafka: KafkaServer, kafka_topic: str, tmp_path: Path
) -> None:
    def prepare(_: str, __: Project) -> None:
        text = MODULE.format(bootstrap=kafka.bootstrap, topic=kafka_topic)
        (tmp_path / "shop.py").write_text(text, encoding="utf-8")

    sql(tmp_path, "CREATE TABLE known AS SELECT 1 AS id")
    produce(kafka, kafka_topic, [{"id": n, "note": f"click {n}"} for n in (1, 2, 3, 4)], partition=0)
    with running_site(tmp_path, prepare=prepare) as site:
        flow(tmp_path, "consume", "clicks", "--once", "--quiet")
        assert sql(tmp_path, "SELECT id FROM clicks") == [(1,)]
        sql(tmp_path, "INSERT INTO known VALUES (2), (3), (4)")
        page = open_letters(visit, site)

        letter(page, 1).get_by_role("button", name=REASON).click()
        page.get_by_text('"note": "click 2"').wait_for()
        ask(page, "Replay", "Replay 1 letter")
        letter(page, 1).get_by_text("replayed", exact=True).wait_for(timeout=SPARK_WAIT)
        assert sql(tmp_path, "SELECT id, note FROM clicks ORDER BY id") == [(1, "click 1"), (2, "click 2")]

        letter(page, 2).get_by_role("button", name=REASON).click()
        page.get_by_text('"note": "click 3"').wait_for()
        ask(page, "Park", "Park 1 letter")
        letter(page, 2).get_by_text("parked", exact=True).wait_for()

        letter(page, 3).get_by_role("checkbox").check()
        ask(page, "Purge", "Purge 1 letter", within="Selected letters")
        letter(page, 3).wait_for(state="detached")
        assert page.locator("tbody tr").count() == 2

        page.get_by_role("button", name="Close the letter").click()
        ask(page, "Replay all that match", "Replay all that match")  # neither the parked nor the purged one
        check_actions(visit, site)
        check_ledger(visit, site, "/runs?pipeline=clicks&limit=1", "stream:")
        check_ledger(visit, site, "/runs?pipeline=replay:clicks&status=succeeded", "dlq:")
        kept = page.request.get(f"{site.address}/api/v1/dead-letters?pipeline=clicks").json()["items"]
        assert {each["position"]: each["status"] for each in kept} == {"1": "replayed", "2": "parked"}
        assert sql(tmp_path, "SELECT id FROM clicks ORDER BY id") == [(1,), (2,)]


def open_letters(visit: Open, site: Site) -> Page:
    """From the page of the stream to its letters, all of which have the reason of their failure."""
    page = visit(site).open("/streams/clicks")
    page.get_by_role("link", name="3", exact=True).click()
    page.wait_for_url("**/dead-letters?pipeline=clicks")
    page.get_by_role("button", name=REASON).nth(2).wait_for()
    assert page.locator("tbody tr").count() == 3
    return page


def check_actions(visit: Open, site: Site) -> None:
    """The page of actions has who asked for what, the outcome, and the run of the replay with its letter."""
    page = visit(site).open("/actions")
    page.get_by_text("0 of 0 dead letters replayed").wait_for(timeout=SPARK_WAIT)
    rows = [row.inner_text() for row in page.locator("tbody tr").all()]
    assert len(rows) == 4
    outcomes = ["0 of 0 dead letters replayed", "purged", "parked", "1 of 1 dead letters replayed"]
    for row, outcome in zip(rows, outcomes, strict=True):
        assert "clicks" in row and "done" in row and "operator" in row and "web" in row, row
        assert outcome in row
        assert "UTC" in row


def check_ledger(visit: Open, site: Site, runs: str, batch: str) -> None:
    """The page of the run that this path finds has the one batch that it committed."""
    visited = visit(site)
    (run,) = visited.page.request.get(f"{site.address}/api/v1{runs}").json()["items"]
    page = visited.open(f"/runs/{run['run_id']}?view=ledger")
    entries = page.get_by_label("Ledger entries of warehouse:main.clicks").locator("tbody tr")
    entries.first.wait_for()
    (cells,) = [row.locator("td").all_inner_texts() for row in entries.all()]
    assert cells[0].startswith(batch)
    assert cells[3] == "1"  # inserted
