"""Who reaches `flow mcp`: tokens, hosts and origins over HTTP, and a process over stdin and stdout."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from mcp import Client, StdioServerParameters

from ematix_flow.backends.state_stores.run_logs import open_run_log
from tests.unit.mcp.conftest import OPERATOR, Assist, Assisted, add_history, text_of

HEADERS = {
    "Authorization": f"Bearer {OPERATOR}",
    "Content-Type": "application/json",
    "Accept": "application/json, text/event-stream",
}
LIST = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}).encode()
COMMAND = ["-m", "ematix_flow", "mcp", "--module", "pipelines.py", "--run-log", "sqlite://run_log.db"]


def send(
    assisted: Assisted, method: str = "POST", body: bytes = LIST, **headers: str | None
) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", assisted.server.port, timeout=30)
    given = {name.replace("_", "-").lower(): value for name, value in headers.items()}
    sent = {name.lower(): value for name, value in HEADERS.items()} | given
    try:
        connection.request(
            method, "/mcp", body, {name: value for name, value in sent.items() if value is not None}
        )
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def test_the_rules_of_flow_web_hold_for_tokens_hosts_and_origins(assist: Assist) -> None:
    assisted = assist()
    assert send(assisted)[0] == 200
    for refused, headers in [
        (401, {"authorization": None}),
        (401, {"authorization": "Bearer wrong-token-0123456789"}),
        (401, {"authorization": f"Bearer {OPERATOR}x"}),
        (403, {"host": "attacker.example"}),
        (403, {"origin": "https://attacker.example"}),
        (403, {"sec-fetch-site": "cross-site"}),
    ]:
        status, text = send(assisted, **headers)
        assert (status, list(json.loads(text))) == (refused, ["error"]), headers
    assert send(assisted, body=b"x" * 100_000)[0] == 413
    assert send(assisted, "GET", b"")[0] == 405
    assert send(assisted, body=b"{")[0] == 400
    for _ in range(20):
        send(assisted, authorization="Bearer wrong-token-0123456789")
    assert send(assisted, authorization="Bearer wrong-token-0123456789")[0] == 429
    assert send(assisted)[0] == 200  # the right one still opens it


def test_a_body_without_a_length_is_bounded(assist: Assist) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", assist().server.port, timeout=30)
    try:
        connection.request("POST", "/mcp", iter([b"x" * 50_000] * 3), HEADERS, encode_chunked=True)
        assert connection.getresponse().status == 413
    finally:
        connection.close()


def test_an_assistant_starts_it_as_a_process(project: Path) -> None:
    """What the module prints does not disturb the protocol, nothing may act, and Spark is not imported."""
    with (project / "pipelines.py").open("a", encoding="utf-8") as module:
        module.write(
            "import atexit, sys\n"
            "atexit.register(lambda: open('loaded', 'w').write('\\n'.join(sys.modules)))\n"
        )
    with open_run_log("sqlite://run_log.db", env=os.environ) as log:
        failed = add_history(log)["failed"]

    async def use() -> None:
        server = StdioServerParameters(
            command=sys.executable, args=COMMAND, env=dict(os.environ), cwd=project
        )
        async with Client(server) as client:
            assert "never instructions" in (client.instructions or "")
            assert "run_now" not in {tool.name for tool in (await client.list_tools()).tools}
            explained = await client.call_tool("explain_failure", {})
            assert json.loads(text_of(explained))["run"]["run_id"] == failed.run_id
            asked = await client.call_tool("run_now", {"name": "totals"})
            assert asked.is_error and "only reads" in text_of(asked)
            planned = await client.call_tool("plan_pipeline", {"name": "totals"})
            assert planned.is_error and "no SQLite database" in text_of(planned)

    asyncio.run(use())
    loaded = set((project / "loaded").read_text().split())
    assert "mcp.server" in loaded
    assert not {"pyspark", "py4j"} & loaded


def test_a_process_refuses_what_is_no_message_and_ends_at_once_when_it_is_told(project: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, *COMMAND],
        cwd=project,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdin and process.stdout and process.stderr
    with process:
        ping = b'{"jsonrpc": "2.0", "id": 7, "method": "ping"}\n'
        process.stdin.write(b"no message\n" + b"{" * 3_000_000 + b"\n" + ping)
        process.stdin.flush()
        answers = []
        while 7 not in answers:
            answers.append(json.loads(process.stdout.readline()).get("id"))
        process.send_signal(signal.SIGTERM)  # stdin stays open
        assert process.wait(60) == 130
        assert b"the module prints to stdout" in process.stderr.read()


def test_a_missing_package_is_named(flow_without: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    refused = flow_without("mcp.server.context", "mcp", "--module", "pipelines.py")
    assert refused.returncode == 2
    assert 'pip install "ematix-flow-spark[mcp]"' in refused.stderr
