"""A server of `flow web` in this process, over a small project with runs, and a plain HTTP client."""

from __future__ import annotations

import datetime as dt
import http.client
import json
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from ematix_flow.graph.module_loading import load_module
from ematix_flow.graph.registry import Registry, use_registry
from ematix_flow.spec.row_counts import RowCounts
from ematix_flow.state.runlog.base import RunLog
from ematix_flow.state.runlog.records import RunRecord
from ematix_flow.web.access import Tokens
from ematix_flow.web.overview import Overview
from ematix_flow.web.server import Binding, WebServer
from ematix_flow.web.site import Site
from ematix_flow.web.static_files import StaticFiles
from ematix_flow.web.store_access import StoreAccess

OPERATOR, READER = "operator-token-0123456789", "reader-token-0123456789"
MODULE = '''
from ematix_flow import Annotated, BigInt, ematix, pk

@ematix.connection
class shop:
    kind = "sqlite"
    path = "shop.db"

@ematix.connection
class w:
    kind = "postgres"
    url = "postgres://etl:hunter2hunter2@127.0.0.1:1/db"

@ematix.connection
class bus:
    kind = "kafka"
    bootstrap_servers = "127.0.0.1:1"

@ematix.table(schema="s")
class Orders:
    id: Annotated[BigInt, pk()]

@ematix.pipeline(
    target=Orders,
    target_connection="w",
    source_connection="shop",
    source_table="orders",
    schedule="*/5 * * * *",
    incremental=True,
    watermark_column="id",
    freshness_sla="1h",
    tags=["nightly"],
)
def orders():
    """All orders of the <b>shop</b>."""

@ematix.pipeline(target=Orders, target_connection="w", depends_on=["orders"], mode="truncate", name="totals")
def totals(conn):
    return "SELECT 1 AS id"

@ematix.pipeline(target=Orders, target_connection="w", mode="truncate", name="<script>alert(1)</script>")
def hostile(conn):
    return "SELECT 1 AS id"

@ematix.streaming_pipeline(source="bus", source_query="clicks", target=Orders, target_connection="w")
def clicks():
    """Clicks as they come."""

ematix.workflow("nightly", jobs=["totals"], triggered_by="orders")
'''


@dataclass(frozen=True)
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Served:
    """A running server, and what is behind it."""

    server: WebServer
    site: Site
    log: RunLog
    folder: Path
    stop: Callable[[], None]
    runs: dict[str, RunRecord] = field(default_factory=dict)

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.server.port}"

    def send(
        self,
        method: str,
        path: str,
        *,
        token: str | None = OPERATOR,
        headers: dict[str, str] | None = None,
        body: Any = None,
        timeout: float = 30,
    ) -> Reply:
        given = {"Authorization": f"Bearer {token}"} if token is not None else {}
        given |= headers or {}
        content = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=timeout)
        try:
            connection.request(method, path, content, given)
            answer = connection.getresponse()
            names = {name.lower(): value for name, value in answer.getheaders()}
            return Reply(answer.status, names, answer.read())
        finally:
            connection.close()

    def get(self, path: str, **given: Any) -> Reply:
        return self.send("GET", f"/api/v1{path}", **given)

    def add_run(
        self, pipeline: str, status: str = "succeeded", minutes: float = 0, **fields: Any
    ) -> RunRecord:
        error = fields.pop("error", None)
        rows = fields.pop("rows", 5)
        metrics = fields.pop("metrics", {})
        started_at = dt.datetime.now(dt.timezone.utc) - dt.timedelta(minutes=minutes)
        values = {"target": "w:s.orders", "mode": "append", "started_at": started_at, **fields}
        one = RunRecord(run_id=uuid.uuid4().hex, pipeline=pipeline, **values)
        self.log.start(one)
        if status != "running":
            self.log.finish(
                one.run_id,
                status,  # type: ignore[arg-type]
                error=error,
                rows=RowCounts(inserted=rows),
                metrics=metrics,
                finished_at=started_at + dt.timedelta(seconds=1),
            )
        return self.log.get(one.run_id)


Serve = Callable[..., Served]


@pytest.fixture
def serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """Start a server over the module; ``binding`` and ``static`` replace its parts."""
    monkeypatch.chdir(tmp_path)
    name = f"pipelines_{uuid.uuid4().hex}"
    (tmp_path / f"{name}.py").write_text(MODULE, encoding="utf-8")
    (tmp_path / "pages" / "assets").mkdir(parents=True)
    (tmp_path / "pages" / "index.html").write_text("<!doctype html><title>pages</title>")
    (tmp_path / "pages" / "assets" / "index-0123456789.js").write_text("export {}")
    with ExitStack() as running:
        registry = running.enter_context(use_registry(Registry()))

        def start(
            *,
            url: str | None = None,
            tokens: Tokens | None = None,
            binding: Binding | None = None,
            read_only: bool = False,
            module: str = f"{name}.py",
        ) -> Served:
            load_module(module)
            stores = StoreAccess(url or f"sqlite://{tmp_path}/run_log.db", read_only=read_only)
            site = Site(registry, stores, Overview(registry, stores), module, "1.0", read_only=read_only)
            server = WebServer(
                site,
                binding or Binding("127.0.0.1", 0),
                tokens or Tokens(OPERATOR, READER),
                StaticFiles(tmp_path / "pages"),
            )
            stop, started = threading.Event(), threading.Event()
            thread = threading.Thread(target=server.run, args=(stop, started))
            thread.start()

            def end() -> None:
                stop.set()
                thread.join()

            running.callback(end)
            assert started.wait(30)
            return Served(server, site, site.stores.run_log(), tmp_path, end)

        yield start


@pytest.fixture
def served(serve: Serve) -> Served:
    """A server over a project whose pipelines have run."""
    one = serve()
    one.runs["first"] = one.add_run("orders", minutes=20, rows=7)
    one.runs["second"] = one.add_run("orders", minutes=10, metrics={"plan": {"big": "x"}, "stages": []})
    one.runs["failed"] = one.add_run("totals", "failed", minutes=5, error=ValueError("disk full"))
    one.runs["running"] = one.add_run("orders", "running", minutes=1)
    one.site.overview.mark_all()
    one.site.overview.refresh()
    return one
