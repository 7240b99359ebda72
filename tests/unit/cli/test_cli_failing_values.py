"""Values of failing rows: shown where somebody asked for the rows, never in messages, and nowhere if off."""

from __future__ import annotations

import json
import logging
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ematix_flow.alerters import Alerter, AlertEvent, clear_alerters, register_alerter
from ematix_flow.backends.state_stores.run_logs import open_run_log
from ematix_flow.state.runlog.base import project_run_log

CANARY = "canary7431"
PROJECT = """
from ematix_flow import Annotated, BigInt, SQLiteConnection, Text, ematix, pk
from ematix_probe import probe, source

shop = SQLiteConnection(name="shop", path="shop.db")

@ematix.table(schema="main")
class Orders:
    order_id: Annotated[BigInt, pk()]
    email: Text | None

@probe.data(table="incoming", source=source.sqlite("shop.db"))
def checked(t):
    t.column("email").regex("@", severity="warn").unique(severity="warn")

@ematix.pipeline(target=Orders, source_connection=shop, target_connection=shop, mode="merge",
                 keys=["order_id"], on_fail="{action}", transforms_post=[checked],
                 expectations=[lambda t: t.column("email").regex("@", name="mail")])
def orders(conn):
    return "SELECT order_id, email FROM incoming"
"""


class Listener(Alerter):
    name = "listener"

    def __init__(self) -> None:
        self.sent: list[AlertEvent] = []

    def send(self, event: AlertEvent) -> None:
        self.sent.append(event)


@pytest.fixture
def listener() -> Iterator[Listener]:
    listener = Listener()
    register_alerter(listener)
    yield listener
    clear_alerters()


@pytest.fixture
def shop() -> Iterator[None]:
    with closing(sqlite3.connect("shop.db")) as database:
        database.execute("CREATE TABLE incoming (order_id INTEGER, email TEXT)")
        database.executemany("INSERT INTO incoming VALUES (?, ?)", [(1, "a@b"), (2, CANARY)])
        database.commit()
    yield


def declare(action: str) -> None:
    Path("pipelines.py").write_text(PROJECT.replace("{action}", action), encoding="utf-8")


def stored(suffixes: tuple[str, ...], folder: Path) -> str:
    """All bytes of the files with these endings, and of their journals."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name.endswith(suffixes)]
    assert files
    return "".join(path.read_bytes().decode("latin-1") for path in files)


def record() -> Any:
    with open_run_log(project_run_log(os.environ), env=os.environ) as log:
        return next(each for each in log.list(limit=5) if each.pipeline == "orders")


@pytest.mark.parametrize("setting", ["", "off", "0", "none of it"])
@pytest.mark.parametrize("action", ["fail", "warn", "quarantine"])
def test_messages_alerts_logs_and_history_never_hold_them_and_samples_only_if_on(
    flow: Any,
    shop: None,
    listener: Listener,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    action: str,
    setting: str,
) -> None:
    monkeypatch.setenv("EMATIX_PROBE_SAMPLES", setting)
    monkeypatch.setenv("EMATIX_PROBE_HISTORY", "history.db")
    monkeypatch.setenv("EMATIX_FLOW_METRICS", f"prometheus+file://{tmp_path}/flow.prom")
    declare(action)
    with caplog.at_level(logging.DEBUG):
        called = flow("run", "orders", "-m", "pipelines.py")
    found = record()
    assert called.code == (1 if action == "fail" else 0)
    assert listener.sent
    assert CANARY not in json.dumps([each.to_json() for each in listener.sent])
    assert CANARY not in caplog.text
    assert CANARY not in str(found.error_message)
    metrics = Path("flow.prom").read_text(encoding="utf-8")
    assert "orders" in metrics and CANARY not in metrics
    if action != "fail":
        assert CANARY not in stored(("history.db", "history.db-wal"), tmp_path)
    shown = flow("runs", "show", found.run_id)
    as_json = flow("run", "orders", "-m", "pipelines.py", "-o", "json")
    assert "1 of 2" in called.out + called.err
    for text in (called.out + called.err, shown.out, as_json.out, json.dumps(found.metrics)):
        assert (CANARY in text) is (not setting), text


@pytest.mark.parametrize("setting", ["", "off"])
def test_reports_of_probes_hold_them_only_if_on(
    flow: Any, shop: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    monkeypatch.setenv("EMATIX_PROBE_SAMPLES", setting)
    declare("warn")
    files = {kind: f"report.{kind}" for kind in ("json", "junit", "html")}
    options = [part for kind, file in files.items() for part in (f"--{kind}", file)]
    called = flow("probe", "run", "pipelines.py", "--history", "history.db", *options)
    assert called.code == 0
    assert "1 of 2 rows" in called.out
    texts = [called.out, *(Path(file).read_text(encoding="utf-8") for file in files.values())]
    texts.append(flow("probe", "run", "pipelines.py", "--output", "json").out)
    assert [CANARY in text for text in texts] == [not setting] * 5
    assert CANARY not in stored(("history.db", "history.db-wal"), tmp_path)


def test_runs_show_hides_rows_that_earlier_runs_recorded(
    flow: Any, shop: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare("warn")
    flow("run", "orders", "-m", "pipelines.py")
    found = record()
    commands = [["show", found.run_id], ["show", found.run_id, "-o", "json"], ["list", "-o", "json"]]
    assert all(CANARY in flow("runs", *command).out for command in commands)
    monkeypatch.setenv("EMATIX_PROBE_SAMPLES", "off")
    for command in commands:
        shown = flow("runs", *command).out
        assert "orders" in shown and CANARY not in shown


@pytest.mark.parametrize("setting", ["", "off"])
def test_repeated_keys_are_read_only_if_on(
    flow: Any, shop: None, monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    monkeypatch.setenv("EMATIX_PROBE_SAMPLES", setting)
    with closing(sqlite3.connect("shop.db")) as database:
        database.execute(f"INSERT INTO incoming VALUES (3, '{CANARY}')")
        database.commit()
    Path("pipelines.py").write_text(
        PROJECT.replace("{action}", "warn").replace('.regex("@", name="mail")', '.unique(name="mail")'),
        encoding="utf-8",
    )
    called = flow("run", "orders", "-m", "pipelines.py")
    assert called.code == 0
    texts = (called.out + called.err, json.dumps(record().metrics), flow("probe", "run", "pipelines.py").out)
    assert [CANARY in text for text in texts] == [not setting] * 3
