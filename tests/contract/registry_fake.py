"""A server that speaks as a schema registry does and holds what a test puts there: real ones check it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class FakeRegistry:
    """``by_id`` and ``latest`` are schemas as the interface writes them; ``asked`` are the paths."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.by_id: dict[int, dict[str, Any]] = {}
        self.subjects: dict[str, int] = {}
        self.asked: list[str] = []

    def put(
        self, subject: str, text: Any, kind: str = "AVRO", references: Sequence[tuple[str, str]] = ()
    ) -> int:
        """The id of the schema, the only version of its subject; references are (name, subject)."""
        schema_id = len(self.by_id) + 1
        self.subjects[subject] = schema_id
        self.by_id[schema_id] = {
            "schema": text if isinstance(text, str) else json.dumps(text),
            "schemaType": kind,
            "references": [{"name": name, "subject": of, "version": 1} for name, of in references],
        }
        return schema_id

    def answer(self, path: str) -> dict[str, Any] | None:
        self.asked.append(path)
        _, what, name, *rest = path.partition("?")[0].split("/")
        if what == "schemas":
            return self.by_id.get(int(rest[0]))
        schema_id = self.subjects.get(name)
        if what != "subjects" or schema_id is None:
            return None
        return {"subject": name, "version": 1, "id": schema_id, **self.by_id[schema_id]}


@contextmanager
def fake_registry() -> Iterator[FakeRegistry]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = fake.answer(self.path)
            missing = {"error_code": 40401, "message": "there is no such thing"}
            content = json.dumps(missing if found is None else found).encode()
            self.send_response(404 if found is None else 200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    fake = FakeRegistry(server.server_port)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield fake
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
