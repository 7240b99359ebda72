"""What the page of a run shows about other runs and its targets: before and after it, and the ledger."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from ematix_flow.web import command_process, runs
from ematix_flow.web.openapi import document
from tests.unit.web.conftest import READER, Reply, Serve, Served
from tests.unit.web.test_web_endpoints import check

LOADS = """
from ematix_flow import Annotated, BigInt, ematix, pk

@ematix.connection
class shop:
    kind = "sqlite"
    path = "shop.db"

@ematix.connection
class away:
    kind = "postgres"
    url = "postgres://etl:hunter2hunter2@127.0.0.1:1/db"

@ematix.table(schema="main")
class Orders:
    id: Annotated[BigInt, pk()]

@ematix.pipeline(target=Orders, target_connection="shop", mode="truncate")
def orders(conn):
    return "SELECT 7 AS id"

@ematix.pipeline(target=Orders, target_connection="away", mode="truncate")
def copies(conn):
    return "SELECT 7 AS id"
"""


# ------------------------------------------------------------------ before and after


def test_a_run_has_the_runs_of_its_pipeline_before_and_after_it(served: Served) -> None:
    shown = served.get(f"/runs/{served.runs['second'].run_id}/around").json
    assert shown["previous"]["run_id"] == served.runs["first"].run_id
    assert shown["next"]["run_id"] == served.runs["running"].run_id
    first = served.get(f"/runs/{served.runs['first'].run_id}/around").json
    assert first["previous"] is None
    assert served.get("/runs/ffffffffffff/around").status == 404


def test_a_run_has_the_nearest_runs_up_and_downstream(served: Served) -> None:
    """``totals`` depends on ``orders``: its run follows the end of the run upstream."""
    near, far = (served.add_run("totals", minutes=minutes) for minutes in (8, 7))
    shown = served.get(f"/runs/{served.runs['second'].run_id}/around").json
    assert shown["upstream"] == []
    (after,) = shown["downstream"]
    assert (after["pipeline"], after["run"]["run_id"]) == ("totals", near.run_id)
    (before,) = served.get(f"/runs/{far.run_id}/around").json["upstream"]
    assert (before["pipeline"], before["run"]["run_id"]) == ("orders", served.runs["second"].run_id)
    assert "plan" not in before["run"]["metrics"], "a list has no plans"


def test_nothing_follows_a_run_that_has_not_ended(served: Served) -> None:
    served.add_run("totals")
    shown = served.get(f"/runs/{served.runs['running'].run_id}/around").json
    assert shown["downstream"] == [{"pipeline": "totals", "run": None}]


def test_a_run_of_a_pipeline_that_is_not_declared_has_only_its_own_neighbours(served: Served) -> None:
    runs_ = [served.add_run("gone", minutes=minutes) for minutes in (2, 1)]
    shown = served.get(f"/runs/{runs_[1].run_id}/around").json
    assert shown["previous"]["run_id"] == runs_[0].run_id
    assert (shown["upstream"], shown["downstream"], shown["left_out"]) == ([], [], 0)


def test_of_very_many_pipelines_downstream_some_are_left_out(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "_MOST_NEIGHBOURS", 0)
    shown = served.get(f"/runs/{served.runs['second'].run_id}/around").json
    assert (shown["downstream"], shown["left_out"]) == ([], 1)


# ------------------------------------------------------------------ ledgers


@pytest.fixture
def loaded(serve: Serve, tmp_path: Path) -> Served:
    """A server over a project of which one pipeline has loaded its table."""
    module = f"loads_{uuid.uuid4().hex}.py"
    (tmp_path / module).write_text(LOADS, encoding="utf-8")
    (tmp_path / "shop.db").touch()
    one = serve(module=module)
    command = [sys.executable, "-m", "ematix_flow", "run", "orders", "--module", module]
    command += ["--run-log", one.site.stores.url]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=dict(os.environ))
    assert done.returncode == 0, done.stderr
    (one.runs["loaded"],) = one.log.list("orders")
    return one


def ledger(served: Served, run_id: str) -> Reply:
    return served.get(f"/runs/{run_id}/ledger", token=READER, timeout=120)


def test_the_ledger_of_a_run_is_read_from_its_target(loaded: Served) -> None:
    run = loaded.runs["loaded"]
    reply = ledger(loaded, run.run_id[:12])
    assert reply.status == 200, reply.body
    check(loaded, "GET", "/runs/{id}/ledger", reply.json)
    assert reply.json["run_id"] == run.run_id
    (target,) = reply.json["targets"]
    (entry,) = target["entries"]
    assert (entry["target"], entry["batch_key"], entry["run_id"]) == (
        "shop:main.orders",
        run.batch,
        run.run_id,
    )
    assert (entry["rows_inserted"], entry["rows_deleted"]) == (1, 0)


def test_a_target_that_cannot_be_reached_is_an_error_in_words_without_its_password(loaded: Served) -> None:
    run = loaded.add_run("copies", target="away:main.orders")
    reply = ledger(loaded, run.run_id)
    assert reply.status == 200
    check(loaded, "GET", "/runs/{id}/ledger", reply.json)
    (target,) = reply.json["targets"]
    assert target["entries"] == [] and "127.0.0.1" in target["error"]["what"]
    assert b"hunter2" not in reply.body


def test_a_ledger_that_is_not_read_in_time_is_refused_in_words(
    loaded: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that reads the ledger is ended, even if it waits for a server."""
    monkeypatch.setattr(runs, "_LEDGER_SECONDS", 0.01)
    run_id = loaded.runs["loaded"].run_id
    reply = ledger(loaded, run_id)
    assert reply.status == 503
    check(loaded, "GET", "/runs/{id}/ledger", reply.json, "503")
    what = f"flow runs show {run_id[:8]} --ledger gave no answer: it did not end within 0.01 s"
    assert reply.json["error"]["what"] == what


def test_the_process_that_reads_a_ledger_is_given_no_secret_as_an_argument(
    loaded: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The URL of a run log may have a password, and other people see the arguments of a process."""
    seen: list[list[str]] = []
    start = subprocess.Popen

    def noted(command: list[str], **options: object) -> object:
        seen.append(command)
        return start(command, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(command_process.subprocess, "Popen", noted)
    assert ledger(loaded, loaded.runs["loaded"].run_id).status == 200
    assert [each for each in seen[0] if loaded.site.stores.url in each] == []


def test_the_ledger_of_an_unknown_run_is_not_found(served: Served) -> None:
    assert ledger(served, "ffffffffffff").status == 404


def test_the_ledger_is_documented_as_one_that_may_wait(served: Served) -> None:
    operation = document(served.server.app.endpoints, "1")["paths"]["/api/v1/runs/{id}/ledger"]["get"]
    assert {"200", "404", "503"} <= operation["responses"].keys()
