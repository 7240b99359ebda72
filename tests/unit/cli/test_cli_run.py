"""``flow run`` and the commands that only show, on a real SQLite file: one database, so no Spark."""

from __future__ import annotations

import json
import os
import sqlite3
import sys
import uuid
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ematix_flow.backends.registry import open_backend
from ematix_flow.backends.state_stores.run_logs import open_run_log
from ematix_flow.graph.connections import resolve_for_use
from ematix_flow.graph.registry import Registry, use_registry
from ematix_flow.state.runlog.records import RunRecord

SHOP = """
from ematix_flow import Annotated, BigInt, String, Text, ematix, pk

@ematix.connection
class shop:
    kind = "sqlite"
    path = "shop.db"

@ematix.table(schema="copy")
class Orders:
    order_id: Annotated[BigInt, pk()]
    note: String[5] | None

@ematix.pipeline(target=Orders, target_connection="shop", incremental=True, watermark_column="order_id")
def orders(conn):
    return "SELECT order_id, note FROM orders"

@ematix.table(schema="copy")
class Notes:
    note: Annotated[Text, pk()]

@ematix.pipeline(target=Notes, target_connection="shop", mode="truncate", depends_on=[orders])
def notes(conn):
    return "SELECT DISTINCT note FROM copy__orders WHERE note IS NOT NULL"

@ematix.pipeline(target=Notes, target_connection="shop", name="apart", mode="truncate")
def apart(conn):
    return "SELECT 'apart' AS note"

@ematix.transform(target_connection="shop")
def forget(conn):
    return conn.execute("DELETE FROM copy__orders")
"""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A SQLite shop with three orders, and its pipelines."""
    (tmp_path / "shop_pipelines.py").write_text(SHOP, encoding="utf-8")
    monkeypatch.setenv("EMATIX_FLOW_MODULE", "shop_pipelines")
    execute(tmp_path, "CREATE TABLE orders (order_id INTEGER, note TEXT)")
    execute(tmp_path, "INSERT INTO orders VALUES (1, 'a'), (2, 'b'), (3, NULL)")
    return tmp_path


def execute(folder: Path, sql: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(folder / "shop.db")) as connection, connection:
        return connection.execute(sql).fetchall()


def loaded(folder: Path) -> list[tuple[Any, ...]]:
    return execute(folder, "SELECT order_id, note FROM copy__orders ORDER BY 1")


def test_one_pipeline_runs_and_its_result_is_a_table_on_stdout(flow, shop):
    done = flow("run", "orders")
    assert done.code == 0
    header, row = done.out.splitlines()
    assert header.split() == [
        *("pipeline", "status", "mode", "path", "read", "inserted", "seconds", "reason")
    ]
    assert row.split()[:6] == ["orders", "succeeded", "append", "same_db", "3", "3"]
    assert done.err.startswith("✓ orders  3 rows in ")
    assert loaded(shop) == [(1, "a"), (2, "b"), (3, None)]


def test_a_second_run_is_skipped_because_nothing_is_new(flow, shop):
    flow("run", "orders")
    done = flow("run", "orders")
    assert done.code == 0
    assert done.out.rstrip().endswith("nothing new since the last run")
    assert len(loaded(shop)) == 3


def test_all_pipelines_run_upstreams_first(flow, shop):
    done = flow("run", "--all", "-o", "json")
    assert done.code == 0
    assert [(r["pipeline"], r["status"]) for r in done.json] == [
        ("orders", "succeeded"),
        ("apart", "succeeded"),
        ("notes", "succeeded"),
    ]


def test_the_upstream_comes_along_when_asked_for(flow, shop):
    assert [r["pipeline"] for r in flow("run", "notes", "--with-upstream", "-o", "json").json] == [
        "orders",
        "notes",
    ]


def test_a_failure_stops_what_depends_on_it_and_nothing_else(flow, shop):
    flow("run", "orders")
    execute(shop, "INSERT INTO orders VALUES (4, 'too long')")
    done = flow("run", "--all")
    assert done.code == 1
    statuses = [line.split()[:2] for line in done.out.splitlines()[1:]]
    assert statuses == [["orders", "failed"], ["apart", "succeeded"], ["notes", "not"]]
    assert "error: " in done.err
    assert "where: shop_pipelines.py:14" in done.err
    assert "state: " in done.err
    assert "notes   not run: orders failed, and notes depends on it" in done.err
    assert len(loaded(shop)) == 3


def test_a_failure_as_json_has_its_parts(flow, shop):
    flow("run", "orders")
    execute(shop, "INSERT INTO orders VALUES (4, 'too long')")
    done = flow("run", "orders", "--output", "json")
    assert done.code == 1
    (failed,) = done.json
    assert failed["status"] == "failed"
    assert set(failed["error"]) == {"type", "what", "where", "state", "next", "exit_code"}


def test_every_run_is_recorded(flow, shop):
    flow("run", "orders")
    execute(shop, "INSERT INTO orders VALUES (4, 'too long')")
    flow("run", "orders")
    runs = flow("runs", "list", "-o", "json").json
    assert [(run["status"], run["trigger"]) for run in runs] == [("failed", "cli"), ("succeeded", "cli")]


def test_quiet_says_only_what_failed(flow, shop):
    done = flow("run", "--all", "--quiet")
    assert (done.code, done.out, done.err) == (0, "", "")
    assert len(flow("run", "--all", "--quiet", "-o", "json").json) == 3


def test_attempts_are_in_the_table_where_there_was_more_than_one(flow, shop):
    declared = shop / "shop_pipelines.py"
    retried = declared.read_text().replace(
        'name="apart", mode="truncate")',
        'name="apart", mode="truncate",\n                 retry={"max_attempts": 3, "backoff_seconds": 0})',
    )
    declared.write_text(retried.replace("SELECT 'apart' AS note", "SELECT note FROM missing"))
    assert "attempts" not in flow("run", "orders").out
    failed = flow("run", "apart")
    header, row = failed.out.splitlines()
    assert row[header.index("attempts") + len("attempts") - 1] == "3"
    assert flow("run", "apart", "-o", "json").json[0]["attempts"] == 3


def test_a_merge_of_keys_alone_says_what_becomes_of_rows_that_are_there(flow, shop):
    declared = shop / "shop_pipelines.py"
    text = declared.read_text().replace('name="apart", mode="truncate"', 'name="apart", mode="merge"')
    declared.write_text(text)
    assert "insert new rows, leave those that are there by key (note)" in flow("plan", "apart").out


def test_the_plan_is_shown_before_it_is_carried_out(flow, shop):
    done = flow("run", "orders", "--plan")
    assert done.err.index("create table copy.orders") < done.err.index("✓ orders")


def test_a_dry_run_counts_and_changes_nothing(flow, shop):
    flow("run", "orders")
    execute(shop, "INSERT INTO orders VALUES (4, 'd')")
    for command in (["dry-run", "orders"], ["run", "orders", "--dry-run"]):
        done = flow(*command, "-o", "json")
        assert done.code == 0
        assert done.json[0]["rows_inserted"] == 1
    assert len(loaded(shop)) == 3
    assert len(flow("runs", "list", "-o", "json").json) == 1


def test_an_empty_source_empties_a_table_only_when_allowed(flow, shop):
    flow("run", "--all")
    execute(shop, "UPDATE copy__orders SET note = NULL")
    assert flow("run", "notes").code == 1
    assert execute(shop, "SELECT count(*) FROM copy__notes") == [(2,)]
    assert flow("run", "notes", "--allow-empty").code == 0
    assert execute(shop, "SELECT count(*) FROM copy__notes") == [(0,)]


def test_a_share_beyond_bounds_is_a_usage_error(flow, shop):
    failed = flow("run", "notes", "--max-shrink", "2")
    assert failed.code == 2
    assert "max_shrink= takes a fraction from 0 to 1" in failed.err


def test_a_path_that_is_not_possible_is_refused(flow, shop):
    failed = flow("run", "orders", "--force-path", "fast")
    assert failed.code == 2
    assert "'fast' is not one of 'same_db', 'copy', 'spark', 'cross_db'" in failed.err


def test_a_pipeline_that_is_running_ends_with_4(flow, shop):
    flow("list")
    target = open_backend(resolve_for_use("shop")).target()
    assert target is not None
    with target.lock("orders", "shop:copy.orders", uuid.uuid4()):
        locked = flow("run", "orders", "--output", "json")
        text = flow("run", "orders")
        waits = flow("run", "--all")
    assert locked.code == text.code == 4
    assert [told["status"] for told in json.loads(locked.out)] == ["locked"]
    assert "orders    locked" in text.out and "– orders  locked" in text.err
    assert "orders is locked, and notes depends on it" in waits.out
    assert "failed" not in text.out + text.err + waits.out
    (first, *_) = json.loads(flow("runs", "list", "--pipeline", "orders", "--output", "json").out)
    assert first["status"] == "locked"
    assert flow("run", "orders").code == 0


def test_a_run_whose_claim_is_gone_says_where_it_belongs_and_what_to_do(flow, shop):
    late = flow("run-slot", "orders", "--slot=2026-01-01T00:00:00+00:00", "--claim=1:me")
    assert late.code == 2
    assert "no longer claimed by 'me'" in late.err
    assert "where: " in late.err and "next: " in late.err and "--lease-seconds" in late.err


def test_the_status_shows_the_run_at_work_and_not_one_that_it_refused(flow, shop):
    flow("list")
    target = open_backend(resolve_for_use("shop")).target()
    assert target is not None
    with target.lock("orders", "shop:copy.orders", uuid.uuid4()):
        with open_run_log(env=os.environ) as log:
            log.start(RunRecord("at-work", "orders", "shop:copy.orders", "append"))
        assert flow("run", "orders").code == 4
        (standing, *_) = json.loads(flow("status", "orders", "--output", "json").out)
        assert "running" in flow("status", "orders").out
    assert (standing["last_run"]["run_id"], standing["last_run"]["status"]) == ("at-work", "running")


def test_ctrl_c_in_a_run_ends_with_130_and_is_recorded(flow, shop):
    (shop / "stops.py").write_text(
        SHOP.replace('return "SELECT order_id', 'raise KeyboardInterrupt; return "S')
    )
    stopped = flow("run", "--all", "-m", "stops")
    assert stopped.code == 130
    assert "error: pipeline 'orders' was interrupted" in stopped.err
    assert "state: nothing had committed; the target is as before" in stopped.err
    assert "next:  flow run --all --module stops  runs all of them again" in stopped.err
    assert [line.split()[:3] for line in stopped.out.splitlines()[1:]] == [
        ["orders", "cancelled", "append"],
        ["apart", "not", "run"],
        ["notes", "not", "run"],
    ]
    assert "not started before the interrupt" in stopped.out
    assert flow("runs", "list", "-o", "json").json[0]["status"] == "cancelled"


def test_a_run_that_fails_while_a_caller_cleans_up_behind_ctrl_c_is_no_interrupt(flow, shop):
    (shop / "fails.py").write_text(SHOP.replace("FROM orders", "FROM nowhere"))
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:
        failed = flow("run", "orders", "-m", "fails")
    assert failed.code == 1, failed.err
    assert "nowhere" in failed.err
    assert flow("runs", "list", "-o", "json").json[0]["status"] == "failed"


def test_ctrl_c_is_reported_as_such_when_cleaning_up_behind_it_fails(flow, shop):
    hidden = "\n    try:\n        raise KeyboardInterrupt\n    finally:\n        raise OSError('gone')"
    (shop / "stops.py").write_text(SHOP.replace('\n    return "SELECT order_id', hidden + '\n    return "S'))
    stopped = flow("run", "orders", "-m", "stops")
    assert stopped.code == 130, stopped.err
    assert "error: pipeline 'orders' was interrupted" in stopped.err


@pytest.mark.parametrize(
    ("connection", "code"),
    [
        ('kind = "postgres"; url = "postgres://me:secret@127.0.0.1:1/shop"', 5),
        ('kind = "postgres"; url = "postgres://me:${SHOP_UNSET_PASSWORD}@127.0.0.1:1/shop"', 2),
        ('kind = "sqlite"; path = "gone.db"', 5),
    ],
)
def test_a_run_that_cannot_connect_says_that_nothing_was_loaded(flow, shop, connection, code):
    source = f"@ematix.connection\nclass away:\n    {connection}\n\n@ematix.table(schema="
    text = SHOP.replace("@ematix.table(schema=", source, 1).replace(
        'target_connection="shop", incremental',
        'target_connection="shop", source_connection="away", incremental',
    )
    (shop / "fails.py").write_text(text)
    failed = flow("run", "orders", "-m", "fails")
    assert failed.code == code, failed.err
    assert "state: nothing was loaded" in failed.err
    assert "next: " in failed.err


def test_plan_shows_the_table_that_would_be_created(flow, shop):
    shown = flow("plan", "orders")
    assert shown.code == 0
    assert "path      same_db" in shown.out
    assert 'CREATE TABLE IF NOT EXISTS "main"."copy__orders"' in shown.out
    assert execute(shop, "SELECT count(*) FROM sqlite_master WHERE name LIKE 'copy%'") == [(0,)]


def test_plan_check_ends_with_3_while_changes_are_pending(flow, shop):
    assert flow("plan", "orders", "--check").code == 3
    flow("run", "orders")
    assert flow("plan", "orders", "--check").code == 0


def test_plans_as_json_say_whether_something_changes(flow, shop):
    (plan,) = flow("plan", "orders", "-o", "json").json
    assert (plan["pipeline"], plan["has_changes"]) == ("orders", True)


def test_a_plan_that_fails_does_not_hide_the_others(flow, shop):
    shown = flow("plan", "--all")
    assert shown.code == 1
    assert "pipeline  orders" in shown.out
    assert "copy__orders" in shown.err  # notes reads what no run has made yet


def test_preview_shows_rows_of_the_source(flow, shop):
    shown = flow("preview", "orders", "--rows", "2")
    assert shown.code == 0
    assert shown.out.splitlines()[-3:] == ["order_id  note", "1         a", "2         b"]
    assert flow("preview", "orders", "-n", "1", "-o", "json").json["sample"] == [{"order_id": 1, "note": "a"}]


def test_validate_checks_all_pipelines_by_default(flow, shop):
    flow("run", "--all")
    shown = flow("validate")
    assert shown.code == 0
    assert [line.split()[:2] for line in shown.out.splitlines()[1:]] == [
        ["orders", "ok"],
        ["apart", "ok"],
        ["notes", "ok"],
    ]


def test_a_pipeline_that_is_not_valid_ends_with_1(flow, shop):
    execute(shop, "ALTER TABLE orders RENAME COLUMN note TO remark")
    shown = flow("validate", "orders")
    assert shown.code == 1
    assert shown.out.splitlines()[1].split() == ["orders", "failed"]
    assert "note" in shown.err


def test_transforms_are_listed_and_run_by_hand(flow, shop):
    flow("run", "orders")
    assert flow("transform", "list").out.splitlines()[1].split()[:2] == ["forget", "shop"]
    assert flow("transform", "run", "forget", "-o", "json").json["result"] == 3
    assert loaded(shop) == []


def test_an_unknown_transform_gets_a_suggestion(flow, shop):
    failed = flow("transform", "run", "forgt")
    assert failed.code == 2
    assert "Did you mean 'forget'?" in failed.err


# ------------------------------------------------------------------ bad input: one clear error, no change


SELECT, PATH = "SELECT order_id, note FROM orders", 'path = "shop.db"'
BAD_INPUT = {
    "unknown connection": ('"shop", incremental', '"sohp", incremental', 2, "Did you mean 'shop'?"),
    "missing variable": (PATH, 'path = "${SHOP_PATH}"', 2, "the environment variable SHOP_PATH is not set"),
    "syntax error": (SELECT, "SELEC order_id FROM orders", 1, "SELEC"),
    "no such table": (SELECT, "SELECT order_id, note FROM nowhere", 1, "nowhere"),
    "column missing in the source": (SELECT, "SELECT order_id FROM orders", 1, "note"),
    "column missing in the target": (SELECT, "SELECT order_id, note, 1 AS extra FROM orders", 1, "extra"),
    "too long": (SELECT, "SELECT order_id, 'far too long' AS note FROM orders", 1, "note"),
    "out of range": (SELECT, "SELECT 9223372036854775808 AS order_id, note FROM orders", 1, "order_id"),
    "null": (SELECT, "SELECT NULL AS order_id, note FROM orders", 1, "order_id"),
    "no such folder": (PATH, 'path = "missing/shop.db"', 5, "missing"),
    "a function that raises": (f'return "{SELECT}"', "return conn.nothing", 1, "AttributeError"),
}


@pytest.mark.parametrize(("old", "new", "code", "message"), BAD_INPUT.values(), ids=BAD_INPUT)
def test_bad_input_gives_one_clear_error_and_changes_nothing(flow, shop, old, new, code, message):
    flow("run", "orders")
    before = loaded(shop)
    execute(shop, "INSERT INTO orders VALUES (9, 'new')")
    assert old in SHOP
    (shop / "bad.py").write_text(SHOP.replace(old, new))
    with use_registry(Registry()):
        failed = flow("run", "orders", "-m", "bad")
    assert failed.code == code, failed.err
    assert failed.err.count("error: ") == 1
    assert message in failed.err
    assert "Traceback" not in failed.err
    assert loaded(shop) == before


def test_a_missing_driver_is_reported_before_anything_runs(flow, shop, monkeypatch):
    monkeypatch.setitem(sys.modules, "duckdb", None)
    declared = (shop / "shop_pipelines.py").read_text()
    (shop / "shop_pipelines.py").write_text(
        declared
        + """
from ematix_flow import DuckDBConnection

@ematix.pipeline(target=Notes, target_connection=DuckDBConnection(name="lake", path="lake.db"), name="late",
                 schedule="0 0 1 1 *", source_connection="shop")
def late(conn):
    return "SELECT note FROM orders"
"""
    )
    failed = flow("run", "--all")
    assert (failed.code, failed.out) == (2, "")
    assert "connection 'lake' needs the Python package 'duckdb', which is not installed" in failed.err
    assert "state: nothing was run" in failed.err and "next:  pip install ematix-flow-spark" in failed.err
    assert flow("run", "orders").code == 0
    due = flow("run-due")
    assert due.code == 0 and "warning: connection 'lake' needs the Python package 'duckdb'" in due.err
    log = flow("runs", "list", "--run-log", "duckdb://runs.duckdb")
    assert log.code == 2 and "error: the run log duckdb://runs.duckdb needs" in log.err


QUITS = """
import sys
from ematix_flow import BigInt, ematix

@ematix.connection
class db:
    kind = "sqlite"
    path = "quits.db"

@ematix.table
class T:
    id: BigInt

@ematix.table(schema="ematix_flow", name="ledger")
class Ledger:
    id: BigInt

@ematix.transform(target_connection="db")
def leaves(conn):
    RAISE

@ematix.pipeline(target=T, target_connection="db")
def quits(conn):
    RAISE

@ematix.pipeline(target=T, target_connection="db")
def fine(conn):
    return "SELECT 1 AS id"

@ematix.pipeline(target=T, target_connection="db", transforms_post=[leaves])
def after(conn):
    return "SELECT 2 AS id"

@ematix.pipeline(target=Ledger, target_connection="db")
def reserved(conn):
    return "SELECT 1 AS id"

@ematix.pipeline(target=T, target_connection="db")
def two_statements(conn):
    return "SELECT 1 AS id; SELECT 2 AS id"

@ematix.pipeline(target=T, target_connection="db")
def no_statement(conn):
    return " "
"""


@pytest.mark.parametrize("raised", ["sys.exit(0)", "sys.exit()", "raise SystemExit", "raise GeneratorExit"])
def test_a_function_that_ends_the_process_fails_its_pipeline_and_no_other(flow, tmp_path, raised):
    (tmp_path / "quitting.py").write_text(QUITS.replace("RAISE", raised))
    (tmp_path / "quits.db").touch()
    name = "GeneratorExit" if "Generator" in raised else "SystemExit"
    ran = flow("run", "quits", "fine", "-m", "quitting", "-o", "json")
    assert ran.code == 1
    assert {run["pipeline"]: run["status"] for run in ran.json} == {"quits": "failed", "fine": "succeeded"}
    assert f"the function of pipeline 'quits' raised {name}" in ran.err
    for command in ("plan", "validate", "preview", "dry-run"):
        told = flow(command, "quits", "-m", "quitting")
        assert told.code == 1 and f"raised {name}" in told.err, command
    post = flow("run", "after", "-m", "quitting")
    assert post.code == 1
    assert f"(leaves) failed: {name}" in post.err and "the load before it is committed" in post.err
    by_hand = flow("transform", "run", "leaves", "-m", "quitting")
    assert by_hand.code == 1 and f"transform 'leaves' raised {name}" in by_hand.err


@pytest.mark.parametrize("name", ["reserved", "two_statements", "no_statement"])
def test_what_is_declared_wrong_ends_with_2_also_when_it_is_found_by_a_run(flow, tmp_path, name):
    (tmp_path / "quitting.py").write_text(QUITS.replace("RAISE", "pass"))
    (tmp_path / "quits.db").touch()
    told = flow("run", name, "-m", "quitting")
    assert told.code == 2, told.err
    assert "where: quitting.py:" in told.err


def test_a_column_that_the_source_table_lacks_is_reported_by_its_declared_name(flow, tmp_path):
    declared = QUITS.replace("RAISE", "pass") + (
        '@ematix.pipeline(target=T, target_connection="db", source_table="s", column_map={"id": "idd"})\n'
        "def renamed(conn):\n    pass\n"
    )
    (tmp_path / "quitting.py").write_text(declared)
    with closing(sqlite3.connect(tmp_path / "quits.db")) as database:
        database.execute("CREATE TABLE s (id integer)")
    told = flow("run", "renamed", "-m", "quitting")
    assert told.code == 1
    assert "no such column: idd\n" in told.err
    assert "next:  correct source_table=, column_map=" in told.err


def test_a_statement_that_the_database_refuses_has_a_next_step(flow, tmp_path):
    declared = QUITS.replace("RAISE", "pass") + (
        "class Orders(ManagedTable):\n    a: BigInt\n    b: Text | None\n\n"
        '@ematix.pipeline(target=Orders, target_connection="db", column_map={"b": "upper(b)"})\n'
        "def renamed(conn):\n    return 'SELECT a FROM s'\n"
    )
    (tmp_path / "quitting.py").write_text("from ematix_flow import ManagedTable, Text\n" + declared)
    with closing(sqlite3.connect(tmp_path / "quits.db")) as database:
        database.execute("CREATE TABLE s (a integer)")
    failed = flow("run", "renamed", "-m", "quitting")
    assert failed.code == 1
    assert "no such column: b\n" in failed.err
    assert "next:  correct the SQL or column_map= of the pipeline" in failed.err


def test_a_row_of_the_wrong_type_has_a_next_step(flow, tmp_path):
    declared = QUITS.replace("RAISE", "pass") + (
        "class Orders(ManagedTable):\n    a: BigInt\n\n"
        '@ematix.pipeline(target=Orders, target_connection="db")\n'
        "def typed(conn):\n    return 'SELECT a FROM s'\n"
    )
    (tmp_path / "quitting.py").write_text("from ematix_flow import ManagedTable\n" + declared)
    with closing(sqlite3.connect(tmp_path / "quits.db")) as database, database:
        database.execute("CREATE TABLE s (a text)")
        database.execute("INSERT INTO s VALUES ('x')")
    failed = flow("run", "typed", "-m", "quitting")
    assert failed.code == 1
    assert "column 'a': 'x' is not a whole number of 64 bits" in failed.err
    assert "next:  correct or filter the row in the source SQL" in failed.err


def test_a_source_table_that_is_locked_is_no_wrong_declaration(flow, tmp_path, monkeypatch):
    monkeypatch.setattr("ematix_flow.backends.sqlite.connection.BUSY_SECONDS", 0.1)
    declared = QUITS.replace("RAISE", "pass") + (
        '@ematix.pipeline(target=T, target_connection="db", source_table="s")\ndef copied(conn):\n    pass\n'
    )
    (tmp_path / "quitting.py").write_text(declared)
    with closing(sqlite3.connect(tmp_path / "quits.db", isolation_level=None)) as database:
        database.execute("CREATE TABLE s (id integer)")
        database.execute("BEGIN EXCLUSIVE")
        told = flow("plan", "copied", "-m", "quitting")
    assert told.code == 1
    assert "locked by another process" in told.err
    assert "source_table=" not in told.err
