"""A run whose Spark tasks are at work is stopped on request, and the session serves the next run."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from ematix_flow import BigInt, ManagedTable, ematix, udf
from ematix_flow.backends.state_stores.run_logs import open_actions, open_run_log
from ematix_flow.errors import RunStopped
from ematix_flow.spec.connections import ObjectStoreLocalConnection, SQLiteConnection
from tests.unit.run.sqlite_file import execute
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("spark")


class Numbers(ManagedTable):
    n: BigInt


def declare(folder: Path, seconds: float) -> Any:
    @udf(args=("Int64",), returns="Int64")
    def slow(values: pa.Array) -> pa.Array:
        time.sleep(seconds)
        return values

    files = ObjectStoreLocalConnection(name="files", path=str(folder), format="csv")
    shop = SQLiteConnection(name="shop", path=str(folder / "shop.db"))

    @ematix.pipeline(
        target=Numbers, target_connection=shop, source_connection=files, mode="truncate", udfs=[slow]
    )
    def numbers() -> str:
        return "SELECT slow(CAST(n AS BIGINT)) AS n FROM numbers"

    return numbers


def test_a_stop_cancels_the_tasks_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ematix_flow.run.run_watcher.INTERVAL_SECONDS", 0.05)
    (tmp_path / "numbers").mkdir()
    (tmp_path / "numbers" / "a.csv").write_text("n\n1\n2\n")

    def stop_it() -> None:
        def run_at_work() -> str | None:
            with open_run_log(env=os.environ) as log:
                (run,) = log.list("numbers") or (None,)
            stage = run.metrics.get("progress", {}).get("stage") if run is not None else None
            return run.run_id if run is not None and stage == "transform" else None

        run_id = wait_until(run_at_work, 120)
        with open_actions(env=os.environ) as store:
            store.request("stop", run_id, {}, by="ada", via="cli")

    stopper = threading.Thread(target=stop_it, daemon=True)
    stopper.start()
    with pytest.raises(RunStopped, match="was stopped by ada"):
        declare(tmp_path, 300).sync()
    stopper.join()
    with open_run_log(env=os.environ, reading=True) as log:
        assert log.list("numbers")[0].status == "cancelled"
    declare(tmp_path, 0).sync()
    assert execute(tmp_path / "shop.db", "SELECT n FROM numbers ORDER BY 1") == [(1,), (2,)]
