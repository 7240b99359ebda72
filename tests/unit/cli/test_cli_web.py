"""``flow web`` starts only where it is safe, says what to open, and stops when it is asked to."""

from __future__ import annotations

import http.client
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

MODULE = """
from ematix_flow import BigInt, ManagedTable, ematix

class Orders(ManagedTable):
    order_id: BigInt

@ematix.pipeline(target=Orders, target_connection="warehouse")
def orders(conn):
    return "SELECT 1 AS order_id"
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop.py").write_text(MODULE, encoding="utf-8")
    return tmp_path


@contextmanager
def started(project: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A running `flow web` and the address that it prints."""
    env = {**os.environ, "EMATIX_FLOW_RUN_LOG_URL": f"sqlite://{project}/run_log.db"}
    command = [sys.executable, "-m", "ematix_flow", "web", "--module", "shop.py", "--port", "0", *options]
    process = subprocess.Popen(command, cwd=project, env=env, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            lines.append(line)
            if line.startswith("open "):
                yield process, line.removeprefix("open ").strip()
                break
        else:
            pytest.fail("".join(lines))
    finally:
        process.kill()
        process.wait()
        if process.stderr is not None:
            process.stderr.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_prints_an_address_that_opens_and_stops_on_a_signal(project: Path, number: signal.Signals) -> None:
    with started(project) as (process, address):
        found = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/\?code=(\S{32,})", address)
        assert found is not None, address
        connection = http.client.HTTPConnection("127.0.0.1", int(found[1]), timeout=30)
        connection.request("GET", f"/?code={found[2]}")
        answer = connection.getresponse()
        assert answer.status == 303 and answer.headers["set-cookie"]
        answer.read()
        assert process.stderr is not None
        _, told, token = process.stderr.readline().strip().partition("sign in again with the token ")
        assert told and token != found[2]
        connection.request("GET", "/api/v1/events", headers={"Authorization": f"Bearer {token}"})
        events = connection.getresponse()
        process.send_signal(number)
        assert events.read().startswith(b"retry:")
        connection.close()
        assert process.wait(60) == 0
        assert process.stderr is not None
        assert process.stderr.read().splitlines()[-1] == "stopped"


def test_it_can_be_the_scheduler_too(project: Path) -> None:
    with started(project, "--with-scheduler") as (process, _):
        process.terminate()
        assert process.wait(60) == 0


def test_a_given_token_is_not_printed(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMATIX_FLOW_WEB_TOKEN", "a-token-of-the-environment")
    with started(project, "--bind", "127.0.0.1") as (_, address):
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", address)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--host", "0.0.0.0"), "no token is set"),
        (("--host", "0.0.0.0", "--token", "0123456789abcdef"), "there is no TLS"),
        (("--tls-cert", "cert.pem"), "both --tls-cert and --tls-key"),
        (("--token", "short"), "16 or more"),
        (("--read-only", "--with-scheduler"), "give one of them"),
        (("--behind-proxy", "flow.example.com"), "takes the address that the proxy serves"),
        (("--token-file", "gone"), "cannot be read"),
    ],
)
def test_what_is_not_safe_or_makes_no_sense_is_refused(flow, project: Path, options, words: str) -> None:
    called = flow("web", "--module", "shop.py", "--port", "0", *options)
    assert called.code == 2 and words in called.err
    assert not (project / "run_log.db").exists()


def test_a_port_that_is_taken_is_an_error_in_words(flow, project: Path) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        called = flow("web", "--module", "shop.py", "--port", str(taken.getsockname()[1]))
    assert called.code == 2 and "cannot listen" in called.err and "--port" in called.err
