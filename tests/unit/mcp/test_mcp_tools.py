"""What the tools of `flow mcp` answer over HTTP, asked by the SDK's own client."""

from __future__ import annotations

import json
from typing import Any

from ematix_flow.mcp.bounded_answers import MOST_BYTES, bounded_json
from ematix_flow.mcp.tool_table import value_of
from ematix_flow.web import actions, pipelines, runs, streams
from ematix_flow.web.endpoints import Call, Handler, Viewer
from ematix_probe.redaction import remember_secret
from tests.unit.mcp.conftest import HOSTILE, READER, Assist, add_history, add_run, text_of

READING = [
    "list_pipelines",
    "show_pipeline",
    "plan_pipeline",
    "list_runs",
    "show_run",
    "explain_failure",
    "read_log",
    "list_streams",
    "list_dead_letters",
    "show_schedule",
    "lineage",
    "list_actions",
]
ACTING = ["run_now", "restart_run", "stop_run", "pause", "resume"]


def test_the_tools_only_read_if_not_told_otherwise(assist: Assist) -> None:
    assisted = assist()
    tools = assisted.tools()
    assert list(tools) == READING
    assert all(tool.annotations and tool.annotations.read_only_hint for tool in tools.values())
    assert all(tool.description and tool.input_schema["type"] == "object" for tool in tools.values())
    refused = assisted.refusal("run_now", name="totals")
    assert refused["what"] == "run_now is not offered: this server only reads"
    assert "--allow-actions" in refused["next"]
    assert assisted.call("list_actions")["items"] == []


def test_an_answer_is_that_of_the_endpoint(assist: Assist) -> None:
    assisted = assist()
    ran = add_history(assisted.log)
    cases: list[tuple[str, dict[str, Any], Handler, dict[str, Any]]] = [
        ("show_pipeline", {"name": "totals"}, pipelines.show_pipeline, {"name": "totals"}),
        ("read_log", {"run": ran["failed"].run_id[:8]}, runs.show_log, {"id": ran["failed"].run_id}),
        ("list_streams", {}, streams.list_streams, {}),
        ("list_dead_letters", {"pipeline": "clicks"}, streams.list_letters, {"pipeline": "clicks"}),
        ("list_actions", {}, actions.list_actions, {}),
    ]
    for tool, arguments, handler, given in cases:
        shown = value_of(handler(assisted.site, Call(given, Viewer("reader", "ada"))))
        answered = assisted.call(tool, **arguments)
        for value in (shown, answered):
            value.pop("behind_seconds", None)
        assert answered == shown, tool


def test_each_call_sees_what_was_recorded_since_the_call_before(assist: Assist) -> None:
    assisted = assist(allow_actions=True)

    def state_in_list() -> str | None:
        (item,) = assisted.call("list_pipelines", select="totals")["items"]
        return item["last_run"] and item["last_run"]["status"]

    def state_in_graph() -> str:
        nodes = assisted.call("lineage", name="totals")["nodes"]
        return next(node["state"] for node in nodes if node["id"] == "pipeline:totals")

    assert (state_in_list(), state_in_graph()) == (None, "never")
    for status in ("succeeded", "failed"):
        add_run(assisted.log, "totals", status)
        assert (state_in_list(), state_in_graph()) == (status, status)
    assert sum(day["rows"] for day in assisted.call("show_pipeline", name="totals")["rows_per_day"]) == 10
    assert assisted.call("show_pipeline", name="orders")["schedule_hold"] is None
    assisted.site.stores.actions().hold("schedule", "orders", by="ada")
    assert assisted.call("show_pipeline", name="orders")["schedule_hold"]["by"] == "ada"


def test_lists_are_short_and_can_be_narrowed(assist: Assist) -> None:
    assisted = assist()
    ran = add_history(assisted.log)
    found = assisted.call("list_pipelines", state="failed")
    (only,) = found["items"]
    assert (only["name"], only["last_run"]["status"], found["count"]) == ("totals", "failed", 1)
    assert "bars" not in only
    assert assisted.call("list_pipelines", limit=1)["left_out_items"] == 2

    first = assisted.call("list_runs", pipeline="totals", limit=1)
    second = assisted.call("list_runs", pipeline="totals", limit=1, after=first["next"])
    shown = [run["run_id"] for page in (first, second) for run in page["items"]]
    assert shown == [ran["failed"].run_id, ran["good"].run_id]
    assert "metrics" not in first["items"][0]

    upcoming = assisted.call("show_schedule", pipeline="orders")["upcoming"]
    assert len(upcoming) == 2 and {each["pipeline"] for each in upcoming} == {"orders"}
    assert assisted.call("show_schedule", pipeline="totals")["upcoming"] == []
    assert set(assisted.call("show_schedule")) == {"slots", "upcoming", "missed", "holds"}


def test_a_failure_is_explained(assist: Assist) -> None:
    assisted = assist()
    ran = add_history(assisted.log)
    explained = assisted.call("explain_failure", pipeline="totals")
    assert explained == assisted.call("explain_failure") | {"run": explained["run"]}
    assert explained["run"]["run_id"] == ran["failed"].run_id
    assert explained["error"] == {
        "type": "ValueError",
        "what": "column 'id' has 2 nulls",
        "where": "pipelines.py:33",
        "state": "nothing was loaded",
        "next": "correct the source, then  flow run totals",
    }
    assert explained["last_success"]["run_id"] == ran["good"].run_id
    assert explained["changed_since_last_success"] == [
        {"what": "code_version", "before": "1", "after": "2"},
        {"what": "plan.path", "before": "fused", "after": "copy"},
    ]
    before = explained["ran_before"]
    assert before["upstreams"]["orders"]["run_id"] == ran["upstream"].run_id
    assert [run["pipeline"] for run in before["any_pipeline"]] == ["totals", "orders"]
    assert explained["log"] == ["reading", "failed: column 'id' has 2 nulls"]
    steps = explained["next_steps"]
    assert steps[0] == "correct the source, then  flow run totals"
    assert steps[1].startswith(f"flow restart {ran['failed'].run_id[:8]}")
    assert explained["is_newest"] and explained["succeeded_since"] is None

    later = add_run(assisted.log, "totals", minutes=5)
    explained = assisted.call("explain_failure", run=ran["failed"].run_id)
    assert explained["succeeded_since"]["run_id"] == later.run_id
    assert explained["next_steps"] == [
        f"nothing has to be done: run {later.run_id[:8]} of totals ended well since"
    ]
    refused = assisted.refusal("explain_failure", run=later.run_id)
    assert refused["what"] == f"run {later.run_id[:8]} of totals has not failed: it is succeeded"
    refused = assisted.refusal("explain_failure", pipeline="orders")
    assert refused["what"] == "the run log has no run of orders that failed"


def test_lineage_goes_both_ways(assist: Assist) -> None:
    assisted = assist()
    both = assisted.call("lineage", name="orders")
    assert [each["id"] for each in both["upstream"]] == ["table:shop:raw"]
    assert {"id": "pipeline:totals", "steps": 1} in both["downstream"]
    assert {"id": "table:shop:totals", "steps": 2} in both["downstream"]
    assert "pipeline:hostile" not in {node["id"] for node in both["nodes"]}
    of_table = assisted.call("lineage", name="shop:totals", direction="upstream", steps=1)
    assert {each["id"] for each in of_table["upstream"]} == {"pipeline:totals", f"pipeline:{HOSTILE}"}
    assert of_table["downstream"] == []
    assert "Did you mean 'orders'" in assisted.refusal("lineage", name="ordres")["what"]


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("show_run", {"run": "zzz"}, "the run log has no run 'zzz'"),
    ("show_run", {}, "show_run needs run"),
    ("list_runs", {"limit": 0}, "the parameter limit takes a number from 1 to 200, not '0'"),
    ("list_runs", {"limit": True}, "the parameter limit takes a number from 1 to 200, not 'true'"),
    ("list_runs", {"status": ["failed"]}, "status takes a text, a number or true or false, not a list"),
    ("list_runs", {"pipelin": "x"}, "list_runs has no parameter 'pipelin'. Did you mean 'pipeline'?"),
    (
        "list_runs",
        {"after": "x" * 5_000},
        "the parameter after has 5,000 characters; at most 1,000 are allowed",
    ),
    ("list_rums", {}, "there is no tool 'list_rums'. Did you mean 'list_runs'?"),
]


def test_an_error_says_what_is_wrong(assist: Assist) -> None:
    assisted = assist()
    for tool, arguments, what in REFUSED:
        error = assisted.refusal(tool, **arguments)
        assert error["what"] == what
        assert set(error) == {"type", "what", "where", "state", "next"}
        assert "openapi" not in (error["next"] or "")


def test_hostile_and_huge_values_are_masked_bounded_and_escaped(assist: Assist) -> None:
    assisted = assist()
    remember_secret("hunter2hunter2")
    big = "\x9b31m\x1b]0;x\x07" + "x" * 500_000 + " hunter2hunter2 " + "y" * 500_000
    run = add_run(
        assisted.log,
        HOSTILE,
        "failed",
        error=big,
        lines=big,
        metrics={"probes": {"text": big, "few": [big]}},
    )
    for tool, arguments in [
        ("show_run", {"run": run.run_id}),
        ("explain_failure", {"pipeline": HOSTILE}),
        ("read_log", {"run": run.run_id}),
        ("show_pipeline", {"name": HOSTILE}),
        ("list_pipelines", {}),
        ("list_runs", {}),
    ]:
        text = text_of(assisted.result(tool, **arguments))
        assert len(text.encode()) <= MOST_BYTES
        assert "hunter2" not in text and not {"\x1b", "\x9b"} & set(text)
        json.loads(text)
    left_out = assisted.call("show_run", run=run.run_id)["left_out"]
    assert any(note.startswith("metrics.probes.text: ") for note in left_out)


def test_a_long_answer_is_shortened_and_says_so() -> None:
    value = {"items": [{"name": f"p{n}", "text": "é" * 100} for n in range(5_000)], "next": "abc"}
    text = bounded_json(value)
    assert len(text.encode()) <= MOST_BYTES
    shown = json.loads(text)
    assert shown["next"] == "abc"
    assert shown["left_out"][0] == f"items: {5_000 - len(shown['items']):,} of 5,000 items"
    assert json.loads(bounded_json({"lines": [str(n) for n in range(100_000)]}))["lines"][-1] == "99999"
    deep: Any = "end"
    for _ in range(100):
        deep = {"a": deep, "b": "z" * 20_000}
    assert len(bounded_json(deep).encode()) <= MOST_BYTES
    wide = {str(n) * 50: "v" * 100 for n in range(10_000)}
    assert len(bounded_json(wide).encode()) <= MOST_BYTES


def test_actions_are_offered_to_operators_alone_if_they_are_allowed(assist: Assist) -> None:
    assisted = assist(allow_actions=True)
    ran = add_history(assisted.log)
    assert list(assisted.tools()) == [*READING, *ACTING]
    assert list(assisted.tools(READER)) == READING
    refused = assisted.refusal("run_now", READER, name="totals")
    assert refused["what"] == "readers may only look: run_now does something"

    paused = assisted.call("pause", name="orders", schedule=True, reason="moving house")
    assert (paused["status"], paused["via"], paused["requested_by"]) == ("done", "mcp", "operator")
    assert assisted.call("show_schedule")["holds"][0]["name"] == "orders"
    assert assisted.call("resume", name="orders", schedule=True)["status"] == "done"

    first, second = (assisted.call("run_now", name="totals", with_downstream=True) for _ in range(2))
    assert (first["is_new"], second["is_new"]) == (True, False)
    assert first["action_id"] == second["action_id"] and first["status"] == "waiting"
    restarted = assisted.call("restart_run", run=ran["failed"].run_id[:8])
    assert restarted["subject"] == ran["failed"].run_id
    assert assisted.refusal("stop_run", run=ran["good"].run_id)["what"].endswith("it is succeeded")
    assert assisted.refusal("run_now", name="totls")["what"].endswith("Did you mean 'totals'?")
    assert [each["kind"] for each in assisted.call("list_actions", unfinished=True)["items"]] == [
        "restart",
        "run",
    ]
    assert assisted.call("show_run", run=ran["failed"].run_id)["can"]["stop"]["ok"] is False
