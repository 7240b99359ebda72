"""Each endpoint answers what its schema says, and the document is about the routes that there are."""

from __future__ import annotations

import datetime as dt
import os
import socket
import subprocess
import sys
import threading
from copy import deepcopy
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from starlette.routing import Route

from ematix_flow.state.dead_letters.base import DeadLetter
from ematix_flow.state.samples.base import StreamSample
from ematix_flow.state.slots.base import Slot
from ematix_flow.state.times import utc_now
from ematix_flow.web import app
from ematix_flow.web.guard import BASE
from ematix_flow.web.openapi import document
from tests.unit.web.conftest import Serve, Served
from tests.waiting import wait_until


def strict(schema: Any) -> Any:
    """The schema with no property allowed but those that it names."""
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {name: strict(each) for name, each in schema.items()}
    if isinstance(schema.get("properties"), dict) and schema.get("type") == "object":
        made["additionalProperties"] = False
    return made


def check(served: Served, method: str, path: str, value: Any, status: str = "200") -> None:
    """Validate an answer by the schema that the served document has for it."""
    whole = served.get("/openapi.json").json
    operation = whole["paths"][f"{BASE}{path}"][method.lower()]
    schema = operation["responses"][status]["content"]["application/json"]["schema"]
    components = deepcopy(whole["components"])
    components["schemas"] = strict(components["schemas"])
    jsonschema.Draft202012Validator({**schema, "components": components}).validate(value)


GETS = [
    ("/me", "/me"),
    ("/pipelines", "/pipelines"),
    ("/pipelines?select=orders%2B", "/pipelines"),
    ("/pipelines/orders", "/pipelines/{name}"),
    ("/graph", "/graph"),
    ("/runs", "/runs"),
    ("/runs?status=failed&text=disk&limit=1", "/runs"),
    ("/runs/{failed}", "/runs/{id}"),
    ("/runs/{running}", "/runs/{id}"),
    ("/runs/{first}/log", "/runs/{id}/log"),
    ("/runs/{second}/around", "/runs/{id}/around"),
    ("/runs/{running}/around", "/runs/{id}/around"),
    ("/streams", "/streams"),
    ("/dead-letters", "/dead-letters"),
    ("/schedule", "/schedule"),
    ("/workflows", "/workflows"),
    ("/connections", "/connections"),
    ("/actions", "/actions"),
]


@pytest.mark.parametrize(("path", "documented"), GETS)
def test_an_answer_has_the_documented_shape(served: Served, path: str, documented: str) -> None:
    ids = {name: run.run_id for name, run in served.runs.items()}
    reply = served.get(path.format(**ids))
    assert reply.status == 200, reply.body
    check(served, "GET", documented, reply.json)
    assert b"hunter2" not in reply.body


def test_the_document_names_the_routes_that_are_served(served: Served) -> None:
    routes = {
        (method.lower(), route.path)
        for route in served.server.app.asgi.routes
        if isinstance(route, Route) and "{path:path}" not in route.path
        for method in (route.methods or ()) - {"HEAD"}
    }
    paths = served.get("/openapi.json").json["paths"]
    assert {(method, path) for path, operations in paths.items() for method in operations} == routes


def test_the_document_is_valid_and_refers_to_schemas_that_it_has(served: Served) -> None:
    made = document(served.server.app.endpoints, "1")
    assert made["openapi"].startswith("3.1.")

    def references(value: Any) -> set[str]:
        if isinstance(value, list):
            return {name for each in value for name in references(each)}
        if not isinstance(value, dict):
            return set()
        own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
        return own | {name for each in value.values() for name in references(each)}

    schemas = made["components"]["schemas"]
    assert references(made) == {f"#/components/schemas/{name}" for name in schemas} & references(made)
    assert {name.rpartition("/")[2] for name in references(made)} <= schemas.keys()
    for schema in schemas.values():
        jsonschema.Draft202012Validator.check_schema(schema)
    for path, operations in made["paths"].items():
        for operation in operations.values():
            named = {each["name"] for each in operation.get("parameters", ()) if each["in"] == "path"}
            assert named == {part[1:-1] for part in path.split("/") if part.startswith("{")}


# ------------------------------------------------------------------ pipelines


def test_failing_pipelines_come_first_with_their_last_runs(served: Served) -> None:
    items = served.get("/pipelines").json["items"]
    assert [item["name"] for item in items] == ["totals", "orders", "<script>alert(1)</script>"]
    totals, orders, never = items
    assert totals["failures_since_success"] == 1 and "disk full" in totals["why"]
    assert [(bar["status"], bar["rows"]) for bar in orders["bars"]] == [
        ("succeeded", 7),
        ("succeeded", 5),
        ("running", None),
    ]
    assert orders["freshness"]["is_breached"] is False and orders["freshness"]["lag_seconds"] > 0
    assert sum(day["rows"] for day in orders["rows_per_day"]) == 12
    assert len(orders["rows_per_day"]) == 14
    assert never["last_run"] is None and never["bars"] == []


def test_a_change_of_a_run_shows_in_the_next_answer(served: Served) -> None:
    assert served.get("/pipelines/totals").json["last_run"]["status"] == "failed"
    again = served.add_run("totals")
    served.server.app.poll_once()
    shown = served.get("/pipelines/totals").json
    assert shown["last_run"]["run_id"] == again.run_id and shown["failures_since_success"] == 0


def test_pipelines_are_selected_and_searched(served: Served) -> None:
    def names(query: str) -> list[str]:
        return sorted(item["name"] for item in served.get(f"/pipelines?{query}").json["items"])

    assert names("select=orders%2B") == ["orders", "totals"]
    assert names("select=tag:nightly") == ["orders"]
    assert names("search=SHOP") == ["orders"]
    assert names("search=nothing%20has%20this") == []
    assert served.get("/pipelines?select=nobody").status == 404


def test_a_pipeline_knows_its_neighbours_and_source(served: Served) -> None:
    shown = served.get("/pipelines/orders").json
    assert (shown["upstreams"], shown["downstreams"]) == ([], ["totals"])
    assert shown["source"] == {"connection": "shop", "table": "orders", "watermark_column": "id"}
    assert shown["schedule_text"] == "*/5 * * * * UTC"
    assert served.get("/pipelines/nobody").status == 404


def test_the_graph_connects_what_is_declared(served: Served) -> None:
    graph = served.get("/graph").json
    states = {node["id"]: node["state"] for node in graph["nodes"]}
    assert states["pipeline:totals"] == "failed" and states["table:w:s.orders"] is not None
    edges = {(edge["from"], edge["to"], edge["kind"]) for edge in graph["edges"]}
    assert edges >= {
        ("table:shop:orders", "pipeline:orders", "reads"),
        ("pipeline:orders", "table:w:s.orders", "loads"),
        ("pipeline:orders", "pipeline:totals", "depends_on"),
        ("workflow:nightly", "pipeline:totals", "runs"),
        ("pipeline:orders", "workflow:nightly", "triggers"),
    }
    assert {end for edge in edges for end in edge[:2]} <= states.keys()


# ------------------------------------------------------------------ runs


def test_runs_are_paged_by_their_cursor(served: Served) -> None:
    first = served.get("/runs?limit=3").json
    rest = served.get(f"/runs?limit=3&after={first['next']}").json
    ids = [run["run_id"] for run in (*first["items"], *rest["items"])]
    assert ids == [served.runs[name].run_id for name in ("running", "failed", "second", "first")]
    assert rest["next"] is None


def test_a_list_leaves_out_the_plans_of_runs(served: Served) -> None:
    run_id = served.runs["second"].run_id
    (listed,) = [run for run in served.get("/runs").json["items"] if run["run_id"] == run_id]
    assert listed["metrics"] == {"stages": []}
    assert served.get(f"/runs/{run_id}").json["metrics"]["plan"] == {"big": "x"}


def test_a_list_says_which_runs_are_held(served: Served) -> None:
    """The run log has a run that waits at a safe point as running."""
    running, other = served.runs["running"], served.add_run("totals", "running")
    actions = served.site.stores.actions()
    actions.hold("run", "orders", by="ada")
    held = {run["run_id"]: run["is_held"] for run in served.get("/runs").json["items"]}
    assert True not in held.values(), "it has not come to a safe point yet"
    actions.mark_held("orders", running.run_id, "before its load")
    held = {run["run_id"]: run["is_held"] for run in served.get("/runs").json["items"]}
    assert (held[running.run_id], held[other.run_id]) == (True, False)
    assert held[served.runs["first"].run_id] is False


def test_a_run_knows_what_is_around_it(served: Served) -> None:
    now = utc_now()
    attempts = [served.add_run("totals", "failed", minutes=3 - n, slot=now, attempt=n + 1) for n in range(2)]
    shown = served.get(f"/runs/{attempts[0].run_id}").json
    assert [each["run_id"] for each in shown["attempts"]] == [one.run_id for one in attempts]
    assert (shown["previous"], shown["next"]) == (served.runs["failed"].run_id, attempts[1].run_id)
    assert served.get(f"/runs/{attempts[0].run_id[:12]}").json["run_id"] == attempts[0].run_id
    assert served.get("/runs/ffffffffffff").status == 404


def test_the_log_of_a_run_is_as_flow_logs_shows_it(served: Served) -> None:
    run_id = served.runs["first"].run_id
    served.log.save_output(run_id, "one\ntwo\nthree")
    shown = served.get(f"/runs/{run_id}/log?tail=2").json
    assert shown == {"run_id": run_id, "status": "succeeded", "lines": ["two", "three"]}


@pytest.mark.parametrize(
    "query",
    [
        "limit=0",
        "limit=501",
        "limit=x",
        "status=nope",
        "since=yesterday",
        "after=zzz",
        "lmit=3",
        "limit=1&limit=2",
    ],
)
def test_a_wrong_parameter_is_refused_in_words(served: Served, query: str) -> None:
    reply = served.get(f"/runs?{query}")
    assert reply.status == 400
    check(served, "GET", "/runs", reply.json, "400")
    assert reply.json["error"]["next"]


# ------------------------------------------------------------------ schedule and dead letters


def test_the_schedule_has_past_slots_with_their_runs_and_next_fires(served: Served) -> None:
    now = utc_now().replace(second=0, microsecond=0)
    slots = served.site.stores.slots()
    slots.open([Slot("orders", now)])
    run = served.add_run("orders", slot=now)
    shown = served.get("/schedule").json
    check(served, "GET", "/schedule", shown)
    assert [(slot["pipeline"], slot["status"], slot["run_id"]) for slot in shown["slots"]] == [
        ("orders", "waiting", run.run_id)
    ]
    assert len(shown["upcoming"]) == 48 * 12 and shown["upcoming"][0]["pipeline"] == "orders"
    assert served.get("/schedule?from=2026-01-02T00:00:00Z&to=2026-01-01T00:00:00Z").status == 400


def test_dead_letters_are_paged_and_shown_with_their_payload(served: Served) -> None:
    with served.site.dead_letters() as stores:
        stores[0].add(
            [
                DeadLetter.create(
                    "gone", "decode", "no JSON", payload=b"\xff" if n == 2 else b"<x>", position=str(n)
                )
                for n in range(3)
            ]
        )
    first = served.get("/dead-letters?limit=2").json
    check(served, "GET", "/dead-letters", first)
    rest = served.get(f"/dead-letters?limit=2&after={first['next']}").json
    assert [each["position"] for each in (*first["items"], *rest["items"])] == ["0", "1", "2"]
    assert rest["next"] is None and first["counts"][0]["letters"] == 3
    shown = served.get(f"/dead-letters/{first['items'][0]['id']}?bytes=2").json
    check(served, "GET", "/dead-letters/{id}", shown)
    assert shown["payload"] == {"text": "<x"} and shown["payload_shown"] == 2
    last = served.get(f"/dead-letters/{rest['items'][0]['id'][:10]}").json
    assert last["payload"] == {"hex": "ff"}
    assert served.get("/dead-letters/ffff").status == 404
    assert served.get("/dead-letters?after=9.1-a").status == 400


def test_the_samples_of_a_stream_are_those_of_a_span(served: Served) -> None:
    now = utc_now()
    for minutes in (90, 30, 0):
        at = now - dt.timedelta(minutes=minutes)
        served.site.stores.samples().add(StreamSample("clicks", "run", at, {"rows_read": minutes}))

    def rows(query: str) -> list[int]:
        return [each["rows_read"] for each in served.get(f"/streams/clicks/samples{query}").json["samples"]]

    assert (rows(""), rows("?span=2h"), rows("?span=900d")) == ([30, 0], [90, 30, 0], [90, 30, 0])
    (stream,) = served.get("/streams").json["items"]
    assert stream["sample"]["rows_read"] == 0 and stream["run"] is None
    assert served.get("/streams/clicks/samples?span=soon").status == 400
    assert served.get("/streams/nobody/samples").status == 404


def test_a_run_log_that_was_deleted_is_reported_and_not_made_again(served: Served) -> None:
    assert served.get("/runs").status == 200
    for left in served.folder.glob("run_log.db*"):
        left.unlink()
    for path in (
        "/runs",
        f"/runs/{served.runs['first'].run_id}",
        "/actions",
        "/schedule",
        "/streams/clicks/samples",
    ):
        reply = served.get(path)
        assert reply.status == 503, (path, reply.body)
        assert "was deleted or replaced while this process used it" in reply.json["error"]["what"]
        assert "start this process again" in reply.json["error"]["next"]
    asked = {"kind": "run", "subject": "totals", "arguments": {}}
    assert served.send("POST", "/api/v1/actions", body=asked).status == 503
    served.site.overview.mark_all()
    assert served.get("/pipelines").status == 503
    assert not (served.folder / "run_log.db").exists()


def test_a_connection_is_checked(served: Served) -> None:
    reply = served.send("POST", "/api/v1/connections/shop/check")
    assert reply.status == 200
    check(served, "POST", "/connections/{name}/check", reply.json)
    assert served.send("POST", "/api/v1/connections/nobody/check").status == 404


def test_a_plan_is_made_by_the_command_in_another_process(served: Served) -> None:
    reply = served.get("/pipelines/totals/plan")
    assert reply.status == 503, "its database is nowhere"
    assert "127.0.0.1" in reply.json["error"]["what"] and b"hunter2" not in reply.body


def test_readers_who_ask_for_plans_and_ledgers_stop_nobody_else(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plans and ledgers that never end take the slow threads, and their queue is bounded."""
    monkeypatch.setattr(app, "MOST_SLOW_WAITING", 1)
    served = serve()
    (tmp_path / "gate").touch()
    module = next(tmp_path.glob("pipelines_*.py"))
    waiting = "import pathlib, time\nwhile pathlib.Path('gate').exists():\n    time.sleep(0.05)\n"
    module.write_text(waiting + module.read_text(encoding="utf-8"), encoding="utf-8")
    statuses: list[int] = []

    def ask(path: str) -> None:
        statuses.append(served.get(path, timeout=300).status)

    places = app.SLOW_THREADS + app.MOST_SLOW_WAITING
    paths = [f"/runs/{served.add_run('orders').run_id}/ledger" for _ in range(places)]
    readers = [threading.Thread(target=ask, args=(path,)) for path in (*paths, "/pipelines/totals/plan")]
    try:
        for reader in readers:
            reader.start()
        wait_until(lambda: statuses == [503])  # the one that finds no place
        assert sum(reader.is_alive() for reader in readers) == places
        refused = served.send("POST", "/api/v1/connections/shop/check")
        assert refused.status == 503
        assert refused.json["error"]["what"] == (
            "too many requests wait for a plan, a ledger or a check of a connection"
        )
        assert served.get("/pipelines").status == served.get("/runs").status == 200
        run = served.add_run("totals")
        wait_until(lambda: run.run_id.encode() in served.get("/pipelines/totals").body)
    finally:
        (tmp_path / "gate").unlink()
        for reader in readers:
            reader.join()


# ------------------------------------------------------------------ the process


def test_the_server_imports_no_spark(tmp_path: Any) -> None:
    program = (
        "import sys, ematix_flow.web.server, ematix_flow.cli.commands.web\n"
        "print(*sorted({'pyspark', 'py4j', 'pandas', 'duckdb'} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, env=dict(os.environ)
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


def test_small_answers_are_sent_at_once(served: Served) -> None:
    """For sockets of this protocol alone asyncio switches off Nagle's algorithm, which costs 40 ms."""
    assert served.server._socket.proto == socket.IPPROTO_TCP
