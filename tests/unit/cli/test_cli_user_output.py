"""What the user's own module prints, logs, warns of or raises: no command shows a secret in it."""

from __future__ import annotations

import io
import json
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ematix_flow.cli.command_list import COMMANDS
from ematix_flow.cli.main import main
from ematix_flow.cli.output import write_text
from ematix_flow.cli.run_views import LineView
from ematix_flow.cli.stream_views import LineStreamView
from ematix_flow.cli.terminal import say
from ematix_probe import redaction
from ematix_probe.cli.masked_streams import MaskedStream
from tests.unit.cli.conftest import Flow

pytestmark = pytest.mark.filterwarnings("default")  # as a person has it
CANARY = "canary/8-Ziggy:Star"
MODULE = """
import logging, os, sys, warnings
from typing import Annotated
from ematix_flow import BigInt, Text, ematix, pk

@ematix.connection
class warehouse:
    url = "postgres://loader:${LOADED_BY}@localhost:1/warehouse"

@ematix.connection
class shop:
    kind = "sqlite"
    path = "shop.db"

log = logging.getLogger("shop.loads")
log.handlers[:] = [logging.StreamHandler()]

def tell(place):
    secret = os.environ["LOADED_BY"]
    print(f"{place} prints", secret)
    sys.stdout.write(secret[:5])
    sys.stdout.write(secret[5:] + " in two pieces\\n")
    sys.stderr.write(f"{place} writes {secret} to stderr\\n")
    log.warning("%s logs %s", place, secret)
    warnings.warn(f"{place} warns of {secret}")
    print(f"\\r{place} at 50 % with {secret}", end="", file=sys.stderr, flush=True)

tell("the module")

@ematix.table(schema=None, name="copied")
class Copied:
    order_id: Annotated[BigInt, pk()]
    note: Text | None

@ematix.pipeline(
    target=Copied, target_connection="shop", mode="merge", freshness_sla="1h", schedule="* * * * *"
)
def orders(conn):
    tell("the pipeline")
    return "SELECT order_id, note FROM orders"

@ematix.pipeline(target=Copied, target_connection="shop")
def broken(conn):
    tell("the broken pipeline")
    raise ValueError("cannot use " + os.environ["LOADED_BY"])

@ematix.pipeline(target=Copied, target_connection="warehouse")
def away(conn):
    return "SELECT 1 AS order_id, 'x' AS note"

@ematix.transform(target_connection="shop")
def tidy(conn):
    tell("the transform")
    raise RuntimeError("no " + os.environ["LOADED_BY"])
"""
# every command, with arguments that let it reach the module or the pipelines
CALLS: dict[str, list[list[str]]] = {
    "demo": [],  # its own project
    "init": [],
    "doctor": [["doctor", "--no-spark"]],
    "list": [["list"]],
    "status": [["status"]],
    "freshness-check": [["freshness-check"]],
    "web": [],  # serves until it is stopped
    "mcp": [],  # the same
    "plan": [["plan", "orders"], ["plan", "broken"], ["plan", "--all"]],
    "preview": [["preview", "orders"], ["preview", "broken"]],
    "validate": [["validate", "orders"], ["validate", "--all"]],
    "dry-run": [["dry-run", "orders"], ["dry-run", "broken"]],
    "probe": [],  # its own tests
    "run": [["run", "orders"], ["run", "broken"], ["run", "away"], ["run", "--all"], ["run", "nothing"]],
    "run-due": [["run-due"]],
    "scheduler": [["scheduler", "--once"]],
    "clear": [["clear", "orders", "--dry-run"]],
    "pause": [["pause", "orders", "--schedule"], ["pause", "orders"]],
    "resume": [["resume", "orders"]],
    "stop": [["stop", "nothing"]],
    "restart": [["restart", "nothing"]],
    "actions": [["actions", "list"]],
    "consume": [["consume", "nothing"]],
    "consume-list": [["consume-list"]],
    "transform": [["transform", "list"], ["transform", "run", "tidy"]],
    "runs": [["runs", "list"]],
    "logs": [["logs", "--last"]],
    "dlq": [["dlq", "list"]],
    "quarantine": [["quarantine", "list"]],
    "state": [["state", "show"]],
    "maintain": [["maintain", "orders"]],
    "connections": [["connections", "list"], ["connections", "check", "warehouse"]],
    "secrets": [["secrets", "list"]],
    "alerts": [["alerts", "test", "--alerter", "stdout://"]],
    "jars": [["jars", "list"]],
}
EACH = [call for calls in CALLS.values() for call in calls]


@pytest.fixture(autouse=True)
def forgotten_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redaction, "_remembered", set())


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LOADED_BY", CANARY)
    (tmp_path / "told.py").write_text(MODULE)
    (tmp_path / ".ematix-flow.toml").write_text('[project]\nmodule = "told"\n')
    with sqlite3.connect(tmp_path / "shop.db") as database:
        database.execute("CREATE TABLE orders (order_id INTEGER, note TEXT)")
        database.execute("INSERT INTO orders VALUES (1, 'a')")
    database.close()
    return tmp_path


def test_every_command_has_a_call() -> None:
    assert set(CALLS) == {name for commands in COMMANDS.values() for name in commands}


@pytest.mark.parametrize("log_format", ["text", "json"])
@pytest.mark.parametrize("output", ["text", "json"])
@pytest.mark.parametrize("call", EACH, ids=" ".join)
def test_no_command_shows_a_secret_that_the_module_shows(
    project: Path, flow: Flow, call: list[str], output: str, log_format: str
) -> None:
    called = flow(*call, "--output", output, "--log-format", log_format, "--debug")
    for text in (called.out, called.err):
        assert CANARY not in text and CANARY[5:] not in text
    for log in project.rglob("*.txt"):
        assert CANARY not in log.read_text(errors="replace")
    if output == "json" and called.out.strip():
        json.loads(called.out)  # nothing that the module prints is among the data
    if log_format == "json":
        assert all(json.loads(line) for line in called.err.splitlines())


def test_what_the_module_prints_is_still_shown(project: Path, flow: Flow) -> None:
    called = flow("run", "orders")
    assert called.code == 0, called.err
    for said in ("the module prints ***", "*** in two pieces", "the pipeline prints ***"):
        assert said in called.out
    for said in ("the module writes ***", "the pipeline logs ***", "the module warns of ***"):
        assert said in called.err


def test_the_traceback_of_a_users_function_is_shown_on_demand(project: Path, flow: Flow) -> None:
    for call in (["run", "broken"], ["plan", "broken"], ["validate", "broken"], ["dry-run", "broken"]):
        called = flow(*call, "--debug")
        assert 'raise ValueError("cannot use " + os.environ["LOADED_BY"])' in called.err, call
        assert "ValueError: cannot use ***" in called.err
        assert "Traceback" not in flow(*call).err


# --- the streams themselves ------------------------------------------------------------------------


@pytest.fixture
def known() -> Iterator[None]:
    redaction.remember_secret(CANARY)
    yield


def test_a_progress_bar_moves_with_each_flush(known: None) -> None:
    real = io.StringIO()
    stream = MaskedStream(real)
    for done in range(3):
        stream.write(f"\r{done} of 3")
        stream.flush()
        assert real.getvalue().endswith(f"{done} of 3")
    stream.write(f"\rleft: {CANARY[:3]}")
    stream.write(CANARY[3:] + "\n")
    assert real.getvalue().endswith("\rleft: ***\n")


def test_bytes_pass_as_they_are_and_in_order(known: None) -> None:
    raw = io.BytesIO()
    stream = MaskedStream(io.TextIOWrapper(raw, encoding="utf-8"))
    stream.write("before ")
    stream.buffer.write(b"\x00\xff\x00")
    stream.write("after")
    stream.flush()
    assert raw.getvalue() == b"before \x00\xff\x00after"


def test_the_streams_are_as_before_when_a_command_has_ended(project: Path) -> None:
    before = sys.stdout, sys.stderr
    main(["run", "broken"])
    assert (sys.stdout, sys.stderr) == before


def test_a_variable_that_holds_a_common_word_masks_no_messages() -> None:
    redaction.remember_secret_variables(
        {"POSTGRES_PASSWORD": "postgres", "API_TOKEN": "abc-123-x", "CACHE_KEY": "/etc/key"}
    )
    assert redaction.mask("postgres abc-123-x /etc/key") == "postgres *** /etc/key"


@pytest.mark.parametrize("value", ["correcthorsebattery", "4929123412341234"])
def test_a_long_value_of_a_variable_that_is_called_like_a_secret_is_masked(value: str) -> None:
    redaction.remember_secret_variables({"PGPASSWORD": value})
    assert redaction.mask(f"it is {value}") == "it is ***"


@pytest.mark.parametrize("view", [LineView, LineStreamView])
def test_control_characters_of_a_note_are_shown_as_codes(view: type[LineView | LineStreamView]) -> None:
    stream = io.StringIO()
    view(["orders"], stream=stream).note("\x1b[31mred: 1 of 2 rows fail")
    assert stream.getvalue() == "  note: \\x1b[31mred: 1 of 2 rows fail\n"


def test_control_characters_of_a_plan_are_shown_as_codes(capsys: pytest.CaptureFixture[str]) -> None:
    write_text("check \x1b[31mred\n\telse warn")
    assert capsys.readouterr().out == "check \\x1b[31mred\n\telse warn\n"
    say("note \x1b[31mred")
    assert capsys.readouterr().err == "note \\x1b[31mred\n"
