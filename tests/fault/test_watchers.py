"""Endpoints of metrics and traces that hang, refuse or are broken: the load is as without them."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.otlp_receiver import receiving
from tests.services.process import free_port
from tests.watched_runs import ROWS, loaded, orders_pipeline

pytestmark = pytest.mark.fault

PROJECT = """
from pathlib import Path
from tests.watched_runs import orders_pipeline
orders = orders_pipeline(Path.cwd())
"""


@pytest.fixture
def broken_gateway() -> Iterator[ThreadingHTTPServer]:
    """Answers 500 to everything; with ``hangs`` set it does not answer."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if server.hangs:
                server.release.wait()
            self.send_error(500)

        do_POST = do_PUT = do_GET

        def log_message(self, format: str, *args: Any) -> None:
            return None

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        block_on_close = False
        hangs = False
        release = threading.Event()

    server = Server(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield server
    server.release.set()
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("fault", ["never", "broken", "refused"])
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_run_is_as_if_nobody_watched(
    protocol: str,
    fault: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with receiving("well" if fault == "refused" else fault) as receiver:  # type: ignore[arg-type]
        address = f"127.0.0.1:{free_port()}" if fault == "refused" else receiver.address(protocol)
        monkeypatch.setenv("EMATIX_FLOW_METRICS", f"otlp+{protocol}://{address}")
        monkeypatch.setenv("EMATIX_FLOW_TRACES", f"otel+otlp+{protocol}://{address}")
        result = orders_pipeline(tmp_path).sync()
        assert (result.status, result.rows_inserted, loaded(tmp_path)) == ("succeeded", ROWS, ROWS)
        assert receiver.asked.is_set() is (fault != "refused")
        assert not receiver.release.is_set()  # the receivers still hang: the run did not wait for an answer
    told = [record.getMessage() for record in caplog.records if "could not report" in record.getMessage()]
    assert sorted(text.split(" sink")[0] for text in told) == ["metrics", "traces"]
    assert all(address in text for text in told)
    assert not [record for record in caplog.records if record.name.startswith("opentelemetry.exporter")]


@pytest.mark.parametrize("fault", ["never", "broken", "refused"])
def test_a_run_is_as_if_there_were_no_gateway(
    fault: str,
    broken_gateway: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    broken_gateway.hangs = fault == "never"
    port = free_port() if fault == "refused" else broken_gateway.server_address[1]
    monkeypatch.setenv("EMATIX_FLOW_METRICS", f"prometheus+push://me:hunter2@127.0.0.1:{port}")
    assert orders_pipeline(tmp_path).sync().status == "succeeded"
    assert loaded(tmp_path) == ROWS
    assert caplog.text.count("could not report") == 1
    assert "hunter2" not in caplog.text


@pytest.mark.timeout(120)
def test_a_command_ends_although_nobody_ever_answers(tmp_path: Path) -> None:
    (tmp_path / "pipelines.py").write_text(PROJECT)
    with receiving("never") as receiver:
        env = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "EMATIX_FLOW_METRICS": f"otlp+grpc://{receiver.address('grpc')}",
            "EMATIX_FLOW_TRACES": f"otel+otlp+http://{receiver.address('http')}",
        }
        command = [
            sys.executable,
            "-m",
            "ematix_flow",
            "run",
            "orders",
            "--module",
            "pipelines",
            "-o",
            "json",
        ]
        done = subprocess.run(
            command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=90, check=False
        )
        assert receiver.asked.is_set() and not receiver.release.is_set()
    assert done.returncode == 0, done.stderr
    assert '"rows_inserted": 7' in done.stdout
    assert "Traceback" not in done.stderr
    assert done.stderr.count("could not report a run") == 2
