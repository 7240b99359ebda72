"""Live events come from one poller of the store, and readers come and go."""

from __future__ import annotations

import http.client
import json
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from ematix_flow.state.slots.base import Slot
from ematix_flow.state.times import utc_now
from ematix_flow.web import events
from ematix_flow.web.changes import ChangePoller
from ematix_flow.web.events import EventHub, TooManyReaders
from ematix_flow.web.guard import BASE
from tests.unit.web.conftest import OPERATOR, Serve, Served
from tests.waiting import wait_until


@contextmanager
def reader(served: Served) -> Iterator[http.client.HTTPResponse]:
    connection = http.client.HTTPConnection("127.0.0.1", served.server.port, timeout=30)
    with closing(connection):
        connection.request("GET", f"{BASE}/events", headers={"Authorization": f"Bearer {OPERATOR}"})
        answer = connection.getresponse()
        assert answer.status == 200 and answer.headers["content-type"].startswith("text/event-stream")
        assert answer.readline() == b"retry: 2000\n"
        yield answer


def changes(answer: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    while line := answer.readline():
        if line.startswith(b"data: "):
            yield json.loads(line[6:])


def next_change(answer: http.client.HTTPResponse, **wanted: Any) -> dict[str, Any]:
    """The next change with these values; the runs of the fixture may be told before."""
    return next(change for change in changes(answer) if wanted.items() <= change.items())


def wait_for_first_poll(served: Served) -> None:
    """What comes now is a change."""
    poller = served.server.app.poller
    wait_until(lambda: not poller._is_first)


def test_every_reader_receives_each_change(served: Served) -> None:
    wait_for_first_poll(served)
    with reader(served) as one, reader(served) as other:
        run = served.add_run("orders", "running")
        for answer in (one, other):
            change = next_change(answer, id=run.run_id)
            assert (change["kind"], change["name"], change["status"]) == ("run", "orders", "running")
        served.log.add_metrics(run.run_id, {"progress": {"rows": 7}})
        assert next_change(one, id=run.run_id)["progress"] == {"rows": 7}
        served.log.add_metrics(run.run_id, {"stages": [{"stage": "apply", "ended": True}]})
        assert next_change(one, id=run.run_id)["status"] == "running", "a stage that ends is a change"
        served.log.finish(run.run_id, "failed", error=ValueError("no"))
        assert next_change(one, id=run.run_id)["status"] == "failed"
        assert next_change(other, id=run.run_id, status="failed")["name"] == "orders"


def test_slots_actions_and_holds_are_sent_too(served: Served) -> None:
    wait_for_first_poll(served)
    with reader(served) as answer:
        served.site.stores.slots().open([Slot("orders", utc_now())])
        assert next_change(answer, kind="slot")["status"] == "waiting"
        body = {"kind": "pause_schedule", "subject": "orders", "arguments": {"reason": "holidays"}}
        assert served.send("POST", f"{BASE}/actions", body=body).status == 201
        assert next_change(answer, kind="hold") | {"at": ""} == {
            "kind": "hold",
            "name": "orders",
            "id": "schedule",
            "status": "held",
            "at": "",
        }
    shown = served.get("/pipelines/orders").json
    assert shown["schedule_hold"]["reason"] == "holidays" and shown["hold"] is None


def test_an_old_action_is_sent_when_it_ends(served: Served) -> None:
    """Also if more actions than one poll reads were asked for since."""
    actions, poller = served.site.stores.actions(), ChangePoller(served.site)
    old, _ = actions.request("run", "totals", {}, by="ada", via="web")
    poller.poll()
    for n in range(60):
        actions.request("run", f"other-{n}", {}, by="ada", via="web")
    assert old.action_id not in [change["id"] for change in poller.poll()]
    claimed = actions.claim(old, "here", 60)
    assert claimed is not None and actions.begin(claimed, 60)
    assert actions.end(claimed, "done", "it ran")
    sent = [(change["id"], change["status"]) for change in poller.poll()]
    assert sent == [(old.action_id, "done")]


def test_readers_that_leave_are_dropped(served: Served) -> None:
    hub = served.server.app.hub
    with ExitStack() as stack:
        for _ in range(60):
            stack.enter_context(reader(served))
        assert len(hub) == 60
    wait_until(lambda: len(hub) == 0)


@pytest.mark.long
def test_ten_thousand_readers_come_and_go(served: Served) -> None:
    hub = served.server.app.hub
    for _ in range(100):
        with ExitStack() as stack:
            for _ in range(100):
                stack.enter_context(reader(served))
        wait_until(lambda: len(hub) == 0)
    files = len(os.listdir("/proc/self/fd"))
    assert files < 200 and served.get("/me").status == 200


def test_a_reader_that_does_not_read_is_dropped_and_the_others_go_on(served: Served) -> None:
    hub, change = (
        served.server.app.hub,
        {"kind": "run", "name": "x" * 4_000, "id": "1", "status": "running"},
    )
    request = f"GET {BASE}/events HTTP/1.1\r\nHost: {served.host}\r\nAuthorization: Bearer {OPERATOR}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", served.server.port)) as deaf, reader(served) as answer:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.sendall(request.encode())
        wait_until(lambda: len(hub) == 2)
        sent = 0
        while len(hub) == 2:
            assert sent < 20_000
            served.server.app.publish([{**change, "number": sent}])
            assert next_change(answer, number=sent)["id"] == "1"
            sent += 1
        assert len(hub) == 1


def test_more_readers_than_allowed_are_refused(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MOST_READERS", 2)
    with reader(served), reader(served):
        reply = served.get("/events")
        assert reply.status == 429 and reply.headers["retry-after"]
    wait_until(lambda: len(served.server.app.hub) == 0)
    with reader(served):
        pass


def test_a_stopping_server_ends_its_readers(serve: Serve) -> None:
    served = serve()
    with reader(served) as answer:
        served.stop()
        assert [*changes(answer)] == []
    hub = EventHub()
    hub.close()
    with pytest.raises(TooManyReaders):
        hub.join()


def test_a_store_that_goes_away_is_503_in_words_until_it_is_back(serve: Serve, tmp_path: Path) -> None:
    served = serve()
    served.add_run("orders")
    assert served.get("/runs").status == 200
    wait_for_first_poll(served)
    with reader(served) as answer:
        _take_away_and_put_back(served, tmp_path, answer)


def _take_away_and_put_back(served: Served, tmp_path: Path, events: http.client.HTTPResponse) -> None:
    file = tmp_path / "run_log.db"  # SQLite removes the files next to it when the last connection closes
    file.rename(tmp_path / "away.db")
    file.mkdir()
    assert next_change(events, kind="store")["status"] == "away"
    reply = served.get("/runs")
    assert reply.status == 503 and reply.headers["retry-after"]
    assert "run_log.db" in reply.json["error"]["what"] and reply.json["error"]["next"]
    assert served.get("/pipelines").status == 503, "what it was before may be wrong by now"
    assert served.get("/me").status == 200
    file.rmdir()
    (tmp_path / "away.db").rename(file)
    assert next_change(events, kind="store")["status"] == "back"
    assert [run["pipeline"] for run in served.get("/runs").json["items"]] == ["orders"]
    assert served.get("/pipelines/orders").json["last_run"]["status"] == "succeeded"


LETTERS_AWAY = """
from ematix_flow import Annotated, BigInt, ematix, pk

@ematix.connection
class w:
    kind = "postgres"
    url = "postgres://etl:hunter2hunter2@127.0.0.1:1/db"

@ematix.connection
class bus:
    kind = "kafka"
    bootstrap_servers = "127.0.0.1:1"

@ematix.table(schema="s")
class Orders:
    id: Annotated[BigInt, pk()]

@ematix.pipeline(target=Orders, target_connection="w", mode="truncate")
def orders(conn):
    return "SELECT 1 AS id"

@ematix.streaming_pipeline(
    source="bus",
    source_query="clicks",
    target=Orders,
    target_connection="w",
    transform_on_error="dlq",
    dead_letter_connection="w",
)
def clicks():
    pass
"""


def test_a_database_of_dead_letters_that_is_away_leaves_the_run_log_alone(
    serve: Serve, tmp_path: Path
) -> None:
    (tmp_path / "letters_away.py").write_text(LETTERS_AWAY, encoding="utf-8")
    served = serve(module="letters_away.py")
    served.add_run("orders")
    stores = served.site.stores
    before = stores.run_log(), stores.slots(), stores.actions()
    for path in ("/dead-letters", "/dead-letters/abc"):
        reply = served.get(path)
        assert reply.status == 503 and "127.0.0.1" in reply.json["error"]["what"]
    (stream,) = served.get("/streams").json["items"]
    assert stream["dead_letters"] is None
    assert served.get("/pipelines").status == served.get("/runs").status == 200
    for was, store in zip(before, (stores.run_log(), stores.slots(), stores.actions()), strict=True):
        assert store is was, "nobody has closed it"
