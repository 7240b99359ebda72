"""An emulator of AWS Lambda: one function, whose events are handled one process each, and answered by 202.

The service itself cannot be run outside Amazon, and other emulators run functions in containers.
"""

from __future__ import annotations

import http.server
import json
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import Any

HANDLE = "import json, sys; from ematix_flow.lambda_handler import handler; handler(json.load(sys.stdin))"


class LambdaEmulator:
    """While the block runs, it listens at ``endpoint``."""

    def __init__(self, function: str, environment: Mapping[str, str]) -> None:
        self.events: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self._function, self._environment = function, environment
        self._running: list[subprocess.Popen[bytes]] = []
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> LambdaEmulator:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        for process in self._running:
            process.kill()
            process.wait()

    def kill(self) -> int:
        running = [process for process in self._running if process.poll() is None]
        for process in running:
            process.kill()
        return len(running)

    def _invoke(self, path: str, headers: Mapping[str, str], body: bytes) -> tuple[int, dict[str, str]]:
        self.paths.append(path)
        if path.partition("?")[0] != f"/2015-03-31/functions/{self._function}/invocations":
            return 404, {"Type": "User", "Message": f"Function not found: {path.split('/')[3]}"}
        if headers.get("X-Amz-Invocation-Type") != "Event":
            return 400, {"Message": "only events are taken here"}
        self.events.append(json.loads(body))
        process = subprocess.Popen(
            [sys.executable, "-c", HANDLE], env=self._environment, stdin=subprocess.PIPE
        )
        assert process.stdin is not None
        process.stdin.write(body)
        process.stdin.close()
        self._running.append(process)
        return 202, {}

    def _handler(self) -> type[http.server.BaseHTTPRequestHandler]:
        emulator = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                status, told = emulator._invoke(self.path, self.headers, body)
                answer = json.dumps(told).encode() if told else b""
                self.send_response(status)
                if status == 404:
                    self.send_header("x-amzn-ErrorType", "ResourceNotFoundException")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: object) -> None:
                pass

        return Handler
