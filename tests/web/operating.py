"""A shop whose pipelines run, and a `flow web --with-scheduler` over it that can be killed.

Source and target are one SQLite database, so no run starts Spark. A run waits at a gate, a file, until the
test opens it.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.services.process import free_port
from tests.waiting import wait_until

OPERATOR, READER = "operator-token-0123456789", "reader-token-0123456789"
ROWS = 1000
NEVER = "0 0 29 2 *"  # a schedule that does not fire by itself while the tests run
MODULE = f'''
import time
from pathlib import Path

from ematix_flow import Annotated, BigInt, ematix, pk
from ematix_flow.run.run_control import _at_work

@ematix.connection
class shop:
    kind = "sqlite"
    path = "shop.db"

def gate(name, or_held=False):
    def wait_for_gate(conn):
        """Wait until the test opens the gate, or until the run is to be held."""
        until = time.monotonic() + 240
        Path(name + ".reached").touch()
        while not (Path(name + ".open").exists() or or_held and _at_work[0].is_held):
            if time.monotonic() > until:
                raise TimeoutError("the test did not open the gate " + name)
            time.sleep(0.05)
    return wait_for_gate

def table(name):
    class Loaded:
        order_id: BigInt
        amount: BigInt
    Loaded.__name__ = name
    return ematix.table(Loaded)

ROWS_OF_SHOP = "SELECT order_id, amount FROM raw_orders"
SHOP = dict(target_connection="shop")

@ematix.pipeline(target=table("Orders"), **SHOP, transforms_post=[gate("orders")])
def orders():
    """Orders of the shop."""
    return ROWS_OF_SHOP

@ematix.pipeline(target=table("Revenue"), **SHOP, depends_on=["orders"], mode="truncate")
def revenue():
    return "SELECT amount AS order_id, count(*) AS amount FROM raw_orders GROUP BY 1"

@ematix.pipeline(target=table("Baskets"), **SHOP, transforms_post=[gate("baskets")])
def baskets():
    return ROWS_OF_SHOP

@ematix.pipeline(target=table("Payments"), **SHOP,
                 transforms_post=["INSERT INTO payment_loads SELECT count(*) FROM Payments"])
def payments():
    return ROWS_OF_SHOP

@ematix.pipeline(target=table("Slow"), **SHOP)
def slow():
    """Its query counts for minutes: a stop has to interrupt it."""
    return ("WITH RECURSIVE numbers(n) AS "
            "(SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 2000000000) "
            "SELECT order_id, amount FROM raw_orders UNION ALL SELECT count(*), 0 FROM numbers")

@ematix.pipeline(target=table("Held"), **SHOP,
                 transforms_post=[gate("held", or_held=True),
                                  "INSERT INTO held_loads SELECT count(*) FROM Held"])
def held():
    return ROWS_OF_SHOP

@ematix.pipeline(target=table("Parcels"), **SHOP,
                 transforms_post=[gate("parcels", or_held=True),
                                  "INSERT INTO parcel_loads SELECT count(*) FROM Parcels"])
def parcels():
    return ROWS_OF_SHOP

@ematix.table
class Views:
    view_id: Annotated[BigInt, pk()]

@ematix.pipeline(target=Views, **SHOP, incremental=True, watermark_column="view_id")
def views():
    return "SELECT view_id FROM raw_views"

@ematix.pipeline(target=table("Returns"), **SHOP, schedule={NEVER!r})
def returns():
    return "SELECT order_id, amount FROM raw_returns"

@ematix.pipeline(target=table("Refunds"), **SHOP, schedule={NEVER!r})
def refunds():
    return ROWS_OF_SHOP

@ematix.pipeline(target=table("Vouchers"), **SHOP, schedule={NEVER!r})
def vouchers():
    return ROWS_OF_SHOP
'''


@dataclass
class ShopSite:
    """The shop, and the server over it. ``start`` after ``kill`` listens at the same address."""

    folder: Path
    run_log: str
    port: int = field(default_factory=free_port)
    _process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("EMATIX_FLOW_")}
        environment = {
            **kept,
            "HOME": str(self.folder),
            "EMATIX_FLOW_STATE": str(self.folder / "state"),
            "EMATIX_FLOW_RUN_LOG_URL": self.run_log,
            "EMATIX_FLOW_WEB_TOKEN": OPERATOR,
            "EMATIX_FLOW_WEB_READER_TOKEN": READER,
        }
        command = [sys.executable, "-m", "ematix_flow", "web", "--module", "shop"]
        command += ["--port", str(self.port), "--with-scheduler"]
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(
                command, cwd=self.folder, env=environment, stdout=output, stderr=subprocess.STDOUT
            )
        wait_until(self._listens, 120)

    @property
    def _output(self) -> Path:
        return self.folder / "flow-web.log"

    def _listens(self) -> bool:
        printed = self._output.read_text(encoding="utf-8", errors="replace")
        assert self._process is not None and self._process.poll() is None, f"flow web ended: {printed}"
        return re.search(r"open http://[\w.:]+", printed) is not None

    def kill(self) -> None:
        """End it with no time to do anything."""
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(60)

    def stop(self) -> None:
        assert self._process is not None
        self._process.terminate()
        try:
            self._process.wait(120)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(60)
            raise

    # ------------------------------------------------------------------ what its runs do

    def execute(self, sql: str) -> list[Any]:
        opened = sqlite3.connect(self.folder / "shop.db", timeout=60)
        with contextlib.closing(opened) as connection, connection:
            return connection.execute(sql).fetchall()

    def count(self, table: str) -> int:
        """How many rows the table has; none if nothing has made it yet."""
        if not self.execute(f"SELECT 1 FROM sqlite_master WHERE name = '{table}' COLLATE NOCASE"):
            return 0
        return int(self.execute(f"SELECT count(*) FROM {table}")[0][0])

    def wait_for_run_at_gate(self, gate: str) -> None:
        wait_until((self.folder / f"{gate}.reached").exists)

    def open_gate(self, gate: str) -> None:
        (self.folder / f"{gate}.open").touch()


@contextlib.contextmanager
def operated_shop(folder: Path, run_log: str) -> Iterator[ShopSite]:
    """Make the shop and serve it."""
    (folder / "shop.py").write_text(MODULE, encoding="utf-8")
    shop = ShopSite(folder, run_log)
    shop.execute("CREATE TABLE raw_orders (order_id INTEGER, amount INTEGER)")
    shop.execute(
        "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < "
        f"{ROWS - 1}) INSERT INTO raw_orders SELECT i, i % 50 FROM n"
    )
    shop.execute("CREATE TABLE raw_views (view_id INTEGER)")
    shop.execute("INSERT INTO raw_views VALUES (1), (2)")
    for name in ("held_loads", "parcel_loads"):
        shop.execute(f"CREATE TABLE {name} (n INTEGER)")
    shop.start()
    try:
        yield shop
    finally:
        for gate in ("orders", "baskets", "held", "parcels"):
            shop.open_gate(gate)
        shop.stop()
