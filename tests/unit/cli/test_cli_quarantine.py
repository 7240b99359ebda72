"""``flow quarantine``: looking at the rows that were set aside, and replaying and purging them."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from ematix_flow.backends.state_stores.run_logs import open_run_log
from ematix_flow.state.runlog.base import project_run_log

PROJECT = """
from ematix_flow import Annotated, BigInt, SQLiteConnection, Text, ematix, pk

shop = SQLiteConnection(name="shop", path="shop.db")

@ematix.table(schema="main")
class Orders:
    order_id: Annotated[BigInt, pk()]
    amount: BigInt | None
    email: Text | None

@ematix.pipeline(target=Orders, source_connection=shop, target_connection=shop, mode="merge",
                 keys=["order_id"])
@ematix.expect_or_drop("positive", "{positive}")
@ematix.expect_or_drop("mail", "email LIKE '%@%'")
def orders(conn):
    return "SELECT order_id, amount, email FROM incoming"

@ematix.table(schema="main")
class Plain:
    order_id: Annotated[BigInt, pk()]

@ematix.pipeline(target=Plain, source_connection=shop, target_connection=shop)
def plain(conn):
    return "SELECT order_id FROM incoming"
"""
ROWS = [(1, 10, "a@b.c"), (2, -5, "a@b.c"), (3, -6, "x"), (4, 7, "none"), (5, 1, "d@e.f")]


def declare(positive: str = "amount > 0") -> None:
    Path("pipelines.py").write_text(PROJECT.replace("{positive}", positive), encoding="utf-8")


@pytest.fixture
def shop(flow, tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """A loaded database: orders 2 and 3 are in quarantine as not positive, order 4 for its mail."""
    declare()
    with closing(sqlite3.connect("shop.db", isolation_level=None)) as connection:
        connection.execute("CREATE TABLE incoming (order_id, amount, email)")
        connection.executemany("INSERT INTO incoming VALUES (?, ?, ?)", ROWS)
        assert flow("run", "orders", "-m", "pipelines.py").code == 0
        yield connection


def loaded(shop: sqlite3.Connection) -> list[int]:
    return [row[0] for row in shop.execute("SELECT order_id FROM orders ORDER BY 1")]


def set_aside(shop: sqlite3.Connection) -> list[tuple[int, str]]:
    return shop.execute("SELECT order_id, _rule FROM orders__quarantine ORDER BY 1").fetchall()


def quarantine(flow, *arguments: str):
    return flow("quarantine", *arguments, "-m", "pipelines.py")


def reload(flow) -> None:
    import sys

    sys.modules.pop("pipelines", None)


# ------------------------------------------------------------------ looking


def test_rows_are_counted_by_rule_and_batch(flow, shop):
    shown = quarantine(flow, "list")
    lines = shown.out.splitlines()
    assert lines[0].split()[:5] == ["pipeline", "target", "rule", "batch", "rows"]
    assert [line.split()[:3] for line in lines[1:]] == [
        ["orders", "shop:main.orders", "mail"],
        ["orders", "shop:main.orders", "positive"],
    ]
    assert "3 quarantined rows" in shown.err
    (mail, positive) = quarantine(flow, "list", "orders", "-o", "json").json
    assert (mail["rows"], positive["rows"]) == (1, 2)
    assert positive["table"] == "main.orders__quarantine"


def test_the_commands_that_list_advises_can_be_copied(flow, shop):
    advice = quarantine(flow, "list").err.splitlines()[-1]
    show, replay = (part.split("  ")[0].removeprefix("flow ").split() for part in advice.split(";  "))
    assert "order_id=2" in flow(*show).out
    assert "0 of 3 rows replayed" in flow(*replay).out


def test_a_pipeline_without_quarantined_rows_lists_none(flow, shop):
    shown = quarantine(flow, "list", "plain")
    assert (shown.code, shown.out) == (0, "")
    assert "no row is in quarantine" in shown.err


def test_rows_are_shown_with_rule_batch_and_values(flow, shop):
    shown = quarantine(flow, "show", "orders", "--rule", "positive")
    lines = shown.out.splitlines()
    assert len(lines) == 3
    assert "positive" in lines[1] and "order_id=2, amount=-5, email='a@b.c'" in lines[1]
    rows = quarantine(flow, "show", "orders", "--limit", "2", "--offset", "1", "-o", "json")
    assert [row["order_id"] for row in rows.json] == [2, 3]
    assert {"_rule", "_batch_id", "_quarantined_at", "_source_position", "target"} <= set(rows.json[0])
    assert "2 of 3" not in rows.err


def test_an_unknown_rule_is_refused_with_a_suggestion(flow, shop):
    shown = quarantine(flow, "show", "orders", "--rule", "postive")
    assert shown.code == 2
    assert "no row of 'orders' is in quarantine under rule 'postive'" in shown.err
    assert "positive" in shown.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["show", "order"], "no pipeline or stream is named 'order'. Did you mean 'orders'?"),
        (["show", "orders", "--batch", "zzz"], "under batch 'zzz'"),
        (["show", "orders", "--target", "shop:main.order"], "Did you mean 'shop:main.orders'?"),
    ],
)
def test_names_that_do_not_exist_are_refused_in_words(flow, shop, arguments, said):
    shown = quarantine(flow, *arguments)
    assert shown.code in (1, 2)
    assert said in shown.err


# ------------------------------------------------------------------ replaying


def test_rows_that_pass_the_corrected_rule_are_loaded_and_leave_quarantine(flow, shop):
    declare("amount > -6")
    reload(flow)
    shown = quarantine(flow, "replay", "orders", "--rule", "positive")
    assert shown.code == 1, shown.err  # order 3 fails again, now for its mail too
    assert "1 of 2 rows replayed, 1 failed again" in shown.out
    assert loaded(shop) == [1, 2, 5]
    assert set_aside(shop) == [(3, "positive"), (4, "mail")]


def test_rows_of_one_batch_are_replayed_alone(flow, shop):
    (first,) = {each["batch"] for each in quarantine(flow, "list", "-o", "json").json}
    shop.execute("DELETE FROM incoming")
    shop.execute("INSERT INTO incoming VALUES (9, -1, 'a@b.c')")
    flow("run", "orders", "-m", "pipelines.py")
    declare("amount IS NOT NULL")
    reload(flow)
    result = quarantine(flow, "replay", "orders", "--batch", first[:8], "--rule", "positive", "-o", "json")
    assert result.json["targets"][0]["rows_read"] == 2
    assert loaded(shop) == [1, 2, 5]
    assert set_aside(shop) == [(3, "mail"), (4, "mail"), (9, "positive")]


def test_a_row_that_was_corrected_in_quarantine_is_loaded(flow, shop):
    shop.execute("UPDATE orders__quarantine SET email = 'n@m.o' WHERE order_id = 4")
    assert quarantine(flow, "replay", "orders", "--rule", "mail").code == 0
    assert loaded(shop) == [1, 4, 5]
    assert quarantine(flow, "replay", "orders", "--rule", "positive").code == 1
    assert set_aside(shop) == [(2, "positive"), (3, "positive")]


def test_rows_are_replayed_after_their_rule_was_removed(flow, shop):
    text = Path("pipelines.py").read_text()
    lines = ["" if "expect" in line else line for line in text.splitlines()]
    Path("pipelines.py").write_text("\n".join(lines))
    reload(flow)
    shown = quarantine(flow, "replay", "orders")
    assert (shown.code, shown.out.strip()) == (0, "3 of 3 rows replayed"), shown.err
    assert loaded(shop) == [1, 2, 3, 4, 5]
    assert set_aside(shop) == []


def test_rules_about_a_whole_load_and_its_shares_do_not_stop_a_replay(flow, shop):
    declared = """keys=["order_id"], expectations=[
        ematix.expect_or_fail("enough", lambda t: t.row_count(at_least=5)),
        ematix.expect_or_fail("cheap", lambda t: t.column("amount").between(None, 9, tolerate=0.5)),
        ematix.expect_or_drop("known", lambda t: t.expression("amount <> -6", tolerate=0.2)),
    ]"""
    text = Path("pipelines.py").read_text()
    Path("pipelines.py").write_text(text.replace('keys=["order_id"]', " ".join(declared.split())))
    reload(flow)
    shop.execute("UPDATE orders__quarantine SET amount = 10 WHERE order_id = 2")
    shop.execute("DELETE FROM orders__quarantine WHERE order_id = 4")
    shown = quarantine(flow, "replay", "orders")
    assert "1 of 2 rows replayed, 1 failed again" in shown.out, shown.err
    assert loaded(shop) == [1, 2, 5]
    assert [row[0] for row in set_aside(shop)] == [3]


def test_a_replay_is_refused_while_no_expectation_is_checked(flow, shop, monkeypatch):
    monkeypatch.setenv("EMATIX_SKIP_QUALITY", "1")
    refused = quarantine(flow, "replay", "orders")
    assert refused.code == 2
    assert "would load every quarantined row unchecked" in refused.err
    assert "unset EMATIX_SKIP_QUALITY" in refused.err
    assert (loaded(shop), len(set_aside(shop))) == ([1, 5], 3)


def test_a_replay_is_in_the_run_log_and_in_the_ledger(flow, shop):
    quarantine(flow, "replay", "orders", "--rule", "mail")
    with open_run_log(project_run_log(os.environ), env=os.environ) as log:
        (record,) = log.list("replay:orders")
    assert (record.status, record.mode, record.rows.read) == ("succeeded", "replay", 1)
    keys = [row[0] for row in shop.execute('SELECT batch_key FROM "ematix_flow__ledger"')]
    assert f"replay:{record.run_id}" in keys
    shown = flow("runs", "show", record.run_id[:8])
    assert "mail" in shown.out and "quarantine" in shown.out


def test_a_replay_without_rows_says_so_and_loads_nothing(flow, shop):
    shown = quarantine(flow, "replay", "plain")
    assert shown.code == 0
    assert "no row of 'plain' is in quarantine" in shown.err


# ------------------------------------------------------------------ purging


def test_rows_that_come_after_the_confirmation_are_not_purged(flow, shop, monkeypatch):
    def confirm_late(question: str) -> None:
        assert question == "delete 3 quarantined rows of 'orders' permanently?"
        shop.execute("INSERT INTO orders__quarantine SELECT * FROM orders__quarantine WHERE order_id = 4")

    monkeypatch.setattr("ematix_flow.cli.commands.quarantine._confirm", confirm_late)
    refused = quarantine(flow, "purge", "orders")
    assert refused.code != 0
    assert "main.orders__quarantine has 4 of these quarantined rows now, not 3" in refused.err
    assert len(set_aside(shop)) == 4


def test_purging_asks_except_with_yes(flow, shop):
    refused = quarantine(flow, "purge", "orders", "--rule", "mail")
    assert refused.code == 2
    assert "--yes" in refused.err
    assert len(set_aside(shop)) == 3
    done = quarantine(flow, "purge", "orders", "--rule", "mail", "--yes")
    assert done.out == "1 quarantined row of orders purged\n"
    assert set_aside(shop) == [(2, "positive"), (3, "positive")]
    assert quarantine(flow, "purge", "orders", "-y", "-o", "json").json == {"pipeline": "orders", "purged": 2}
    assert set_aside(shop) == []
