"""The page of a run shows what its targets committed, and what ran before and after it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from ematix_flow.backends.state_stores.run_logs import open_run_log
from tests.web.conftest import DESKTOP, PHONE, READER, Open, Site, running_site
from tests.web.project import Project

MODULE = """
from ematix_flow import Annotated, BigInt, Target, ematix, pk

@ematix.connection
class shop:
    kind = "sqlite"
    path = "shop.db"

@ematix.connection
class away:
    kind = "postgres"
    url = "postgres://etl:hunter2hunter2@127.0.0.1:1/db"

@ematix.table(schema="main")
class Numbers:
    n: Annotated[BigInt, pk()]

@ematix.table(schema="main")
class Doubles:
    n: Annotated[BigInt, pk()]

@ematix.pipeline(
    targets=[Target(connection="shop", table=Numbers), Target(connection="away", table=Numbers)],
    source_connection="shop", mode="merge", continue_on_target_failure=True,
)
def numbers(conn):
    return "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < 1200) SELECT n FROM r"

@ematix.pipeline(target=Doubles, target_connection="shop", mode="truncate", depends_on=["numbers"])
def doubles(conn):
    return "SELECT 2 * n AS n FROM numbers"
"""


@dataclass(frozen=True)
class Runs:
    """The ids of runs: two of ``numbers``, and one of ``doubles`` after them."""

    first: str
    second: str
    after: str


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("web-ledger")

    def load(run_log: str, _: Project) -> None:
        (folder / "shop.py").write_text(MODULE, encoding="utf-8")
        (folder / "shop.db").touch()
        for name in ("numbers", "numbers", "doubles"):
            command = [sys.executable, "-m", "ematix_flow", "run", name, "--module", "shop"]
            subprocess.run([*command, "--run-log", run_log], cwd=folder, capture_output=True, check=False)

    with running_site(folder, prepare=load) as started:
        yield started


@pytest.fixture(scope="module")
def runs(site: Site) -> Runs:
    with open_run_log(f"sqlite://{site.folder}/run_log.db", env=os.environ, reading=True) as log:
        second, first = log.list("numbers")
        (after,) = log.list("doubles")
    return Runs(first.run_id, second.run_id, after.run_id)


def test_the_entry_of_a_target_is_shown_and_the_one_that_is_away_says_why(
    visit: Open, site: Site, runs: Runs
) -> None:
    visited = visit(site, token=READER)
    page = visited.open(f"/runs/{runs.first}")
    page.get_by_role("button", name="Ledger", exact=True).click()
    entries = page.get_by_label("Ledger entries of shop:main.numbers")
    entries.wait_for()
    cells = entries.locator("tbody td").all_inner_texts()
    assert cells[0].startswith("run:") and cells[0].endswith("numbers, shop:main.numbers")
    assert "UTC" in cells[1]
    assert cells[2:] == ["1,200", "1,200", "0", "0", "the whole source"]
    error = page.get_by_role("group", name="Error").inner_text()
    assert "127.0.0.1" in error
    assert "hunter2" not in page.content()
    page.get_by_role("button", name="Read again").click()
    page.get_by_role("status").wait_for()
    entries.wait_for()
    assert visited.problems == []


@pytest.mark.parametrize("screen", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_a_ledger_fits_the_screen(visit: Open, site: Site, runs: Runs, screen: dict[str, int]) -> None:
    page = visit(site, viewport=screen).open(f"/runs/{runs.first}?view=ledger")
    page.get_by_label("Ledger entries of shop:main.numbers").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= screen["width"]
    tables = page.locator(".table-wrap").evaluate_all(
        "all => all.map(each => each.scrollWidth - each.clientWidth)"
    )
    assert max(tables) <= 1


def test_a_run_leads_to_the_runs_before_and_after_it(visit: Open, site: Site, runs: Runs) -> None:
    visited = visit(site)
    page = visited.open(f"/runs/{runs.second}")
    around = page.get_by_role("region", name="Runs before and after")
    around.wait_for()
    rows = [" ".join(row.split()) for row in around.locator("tbody tr").all_inner_texts()]
    assert rows[0].startswith(f"Previous run numbers {runs.first[:8]}")
    assert rows[1].startswith(f"Downstream, after doubles {runs.after[:8]} ")
    assert len(rows) == 2
    around.get_by_role("link", name=runs.after[:8]).click()
    page.wait_for_url(f"**/runs/{runs.after}")
    before = page.get_by_role("region", name="Runs before and after").locator("tbody tr")
    before.wait_for()
    assert f"Upstream, before numbers {runs.second[:8]}" in " ".join(before.inner_text().split())
    assert visited.problems == []


def test_the_name_of_a_target_has_room_on_a_phone(visit: Open, site: Site, runs: Runs) -> None:
    page = visit(site, viewport=PHONE).open(f"/runs/{runs.first}")
    box = page.get_by_label("Targets").get_by_role("cell", name="shop:main.numbers").bounding_box()
    assert box is not None and box["width"] >= 140
