"""Files in a bucket when its server fails, restarts or goes away, and when runs are killed or race."""

from __future__ import annotations

import datetime as dt
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ematix_flow import fault_points
from ematix_flow.backends.base import BatchTarget
from ematix_flow.backends.objectstore.storage import s3_table_storage
from ematix_flow.backends.objectstore.table import table_state
from ematix_flow.backends.stores import s3_client, s3_leases
from ematix_flow.backends.stores.s3_store import S3Store
from ematix_flow.errors import FlowError, TargetFailed
from ematix_flow.spec.tables import ColumnSpec, TableSpec
from ematix_flow.spec.types import DataType
from ematix_flow.testing.loads import PIPELINE, TARGET, load_rows, new_load, prepare
from tests.contract.s3_files import S3Lake
from tests.fault.forked_runs import MODULE, ForkedRuns, forked_runs
from tests.services.s3 import S3Server, running_server
from tests.services.s3_proxy import S3Proxy, proxied

pytestmark = pytest.mark.fault

TABLE = TableSpec(
    "shop",
    "orders",
    (ColumnSpec("id", DataType("big_int"), primary_key=True), ColumnSpec("at", DataType("integer"))),
)


def rows(first: int, last: int) -> list[dict[str, Any]]:
    return [{"id": n, "at": n // 3} for n in range(first, last)]


def ids(lake: S3Lake) -> list[int]:
    return sorted(row["id"] for row in lake.rows(TABLE))


@pytest.fixture(scope="module")
def bucket(s3: S3Server) -> Iterator[str]:
    name = s3.create_bucket("faults")
    yield name
    s3.drop_bucket(name)


@pytest.fixture
def lake(s3: S3Server, bucket: str) -> S3Lake:
    return S3Lake(s3, bucket)


@pytest.fixture
def proxy(s3: S3Server) -> Iterator[S3Proxy]:
    with proxied(s3.port) as found:
        yield found


@pytest.fixture
def target(lake: S3Lake, proxy: S3Proxy) -> BatchTarget:
    """Its requests go through the proxy; the table is there and holds three rows."""
    target = lake.backend(proxy.endpoint).target()
    load_rows(target, new_load(TABLE), rows(0, 3))
    return target


def assert_tidy(lake: S3Lake) -> None:
    """A listing of the prefix shows the table and the replaced files, and no leftovers of a load."""
    assert sorted(lake.listed(TABLE)) == sorted([*lake.published(TABLE), *lake.replaced()])
    left = [name for name in lake.hidden() if "/intent-" in name or name.startswith(("staging/", "locks/"))]
    assert left == []


# ------------------------------------------------------------------ a server that fails


@pytest.mark.parametrize("status", [pytest.param(500, marks=pytest.mark.long), 503, None])
def test_errors_that_pass_are_sat_out_wherever_they_come(
    lake: S3Lake, proxy: S3Proxy, target: BatchTarget, status: int | None
) -> None:
    for place in ("staging/.*parquet", "part.json", "shop/orders/part-", "manifest-", "intent-"):
        with proxy.failing(status, times=1, method="PUT", path=place) as fault:
            load_rows(target, new_load(TABLE, "truncate"), rows(0, 5))
        assert fault.met == 1, place
    assert ids(lake) == [0, 1, 2, 3, 4]
    assert_tidy(lake)


def test_a_commit_whose_answer_was_lost_is_a_commit(
    lake: S3Lake, proxy: S3Proxy, target: BatchTarget
) -> None:
    with proxy.failing(500, times=1, method="PUT", path="manifest-", after=True) as fault:
        assert load_rows(target, new_load(TABLE), rows(3, 5)).rows.inserted == 2
    assert fault.met == 1
    assert ids(lake) == [0, 1, 2, 3, 4]
    assert len(target.ledger(PIPELINE, TARGET)) == 2
    assert_tidy(lake)


def test_a_server_that_goes_away_at_the_commit_leaves_a_question_that_the_next_run_answers(
    lake: S3Lake, proxy: S3Proxy, target: BatchTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_client, "ATTEMPTS", 2)
    monkeypatch.setattr(s3_client, "_clients", {})
    with ExitStack() as away:
        gone = proxy.failing(None, path="manifest-", after=True)
        with (
            fault_points.inject("files.before_publish", lambda: away.enter_context(gone)),
            pytest.raises(TargetFailed) as raised,
        ):
            load_rows(target, new_load(TABLE, batch_key="slot:1"), rows(3, 5), drop=False)
    assert "not known" in (raised.value.state or "")
    assert ids(lake) == [0, 1, 2, 3, 4], "the server had taken it"
    target.sweep_staging(PIPELINE, TARGET)
    assert load_rows(target, new_load(TABLE, batch_key="slot:1"), rows(3, 5)).duplicate
    assert ids(lake) == [0, 1, 2, 3, 4]
    assert_tidy(lake)


def test_a_commit_that_the_server_is_still_at_is_waited_for(
    lake: S3Lake, proxy: S3Proxy, target: BatchTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client times out and repeats the write, and the server answers that another write is under way."""
    monkeypatch.setattr(s3_client, "READ_SECONDS", 1)
    monkeypatch.setattr(s3_client, "_clients", {})

    def until_it_was_asked_for_again() -> None:
        deadline = time.monotonic() + 60
        while conflicts.met < 2 and time.monotonic() < deadline:
            time.sleep(0.02)

    with (
        proxy.failing(
            None, times=1, method="PUT", path="manifest-", after=True, then=until_it_was_asked_for_again
        ),
        proxy.failing(409, method="PUT", path="manifest-") as conflicts,
    ):
        assert load_rows(target, new_load(TABLE), rows(3, 5)).rows.inserted == 2
    assert conflicts.met > 1
    assert ids(lake) == [0, 1, 2, 3, 4]
    assert_tidy(lake)


def test_a_commit_that_comes_late_after_its_load_failed_finds_all_of_its_files(
    lake: S3Lake, proxy: S3Proxy, target: BatchTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_client, "ATTEMPTS", 2)
    monkeypatch.setattr(s3_client, "READ_SECONDS", 1)
    monkeypatch.setattr(s3_client, "_clients", {})
    go_on = threading.Event()

    def held_back() -> None:
        go_on.wait(60)

    with (
        proxy.failing(None, times=1, method="PUT", path="manifest-", after=True, then=held_back) as late,
        proxy.failing(500, method="PUT", path="manifest-"),
        pytest.raises(TargetFailed) as raised,
    ):
        load_rows(target, new_load(TABLE, "truncate", batch_key="slot:1"), rows(3, 5), drop=False)
    assert "not known" in (raised.value.state or "")
    assert ids(lake) == [0, 1, 2]
    go_on.set()
    assert late.answered.wait(60)
    assert ids(lake) == [3, 4]
    target.sweep_staging(PIPELINE, TARGET)
    assert load_rows(target, new_load(TABLE, "truncate", batch_key="slot:1"), rows(3, 5)).duplicate
    assert ids(lake) == [3, 4]


def test_a_commit_that_comes_after_the_next_load_has_begun_is_shut_out(
    lake: S3Lake, proxy: S3Proxy, target: BatchTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_client, "ATTEMPTS", 2)
    monkeypatch.setattr(s3_client, "READ_SECONDS", 1)
    monkeypatch.setattr(s3_client, "_clients", {})
    other = lake.backend().target()
    go_on = threading.Event()

    def held_back() -> None:
        go_on.wait(60)

    with (
        proxy.failing(None, times=1, method="PUT", path="manifest-", after=True, then=held_back) as late,
        proxy.failing(500, method="PUT", path="manifest-"),
        pytest.raises(TargetFailed),
    ):
        load_rows(target, new_load(TABLE, batch_key="slot:1"), rows(3, 5))
    assert load_rows(other, new_load(TABLE, batch_key="slot:1"), rows(3, 5)).rows.inserted == 2
    assert ids(lake) == [0, 1, 2, 3, 4]
    go_on.set()
    assert late.answered.wait(60)
    assert ids(lake) == [0, 1, 2, 3, 4]
    assert len(other.ledger(PIPELINE, TARGET)) == 2


def test_a_commit_that_went_in_before_the_keys_ran_out_is_a_commit(
    lake: S3Lake, proxy: S3Proxy, target: BatchTarget
) -> None:
    with (
        proxy.failing(500, times=1, method="PUT", path="manifest-", after=True),
        proxy.failing(400, times=1, method="PUT", path="manifest-") as refused,
    ):
        assert load_rows(target, new_load(TABLE), rows(3, 5)).rows.inserted == 2
    assert refused.met == 1
    assert ids(lake) == [0, 1, 2, 3, 4]
    assert_tidy(lake)


def test_a_load_that_fails_half_way_through_its_copies_takes_them_back(
    lake: S3Lake, proxy: S3Proxy, target: BatchTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_client, "ATTEMPTS", 1)
    monkeypatch.setattr(s3_client, "_clients", {})
    with (
        proxy.failing(500, times=1, method="PUT", path="shop/orders/part-"),
        pytest.raises(TargetFailed, match="500 InternalError") as raised,
    ):
        load_rows(target, new_load(TABLE), rows(3, 30), parts=4)
    assert raised.value.state == "shop.orders is unchanged"
    assert ids(lake) == [0, 1, 2]
    assert_tidy(lake)


def test_a_load_that_lost_its_lock_does_not_commit(
    lake: S3Lake, target: BatchTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another load takes over while this one is delayed: its files are removed, and it may not commit."""
    monkeypatch.setattr(s3_leases, "LEASE_SECONDS", 1.0)
    monkeypatch.setattr(s3_leases, "HEARTBEAT_SECONDS", 600.0)
    other = lake.backend().target()

    def meanwhile() -> None:  # waits until the lease of the first load has expired
        load_rows(other, new_load(TABLE, pipeline="another"), rows(10, 12))

    with (
        fault_points.inject("files.version_written", meanwhile),
        pytest.raises(TargetFailed, match="lost its lock"),
    ):
        load_rows(target, new_load(TABLE), rows(3, 5))
    assert ids(lake) == [0, 1, 2, 10, 11]
    assert_tidy(lake)


def test_a_load_that_was_overtaken_after_its_last_look_at_the_lock_does_not_commit(
    lake: S3Lake, target: BatchTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = lake.backend().target()
    overtaken = []

    plain = S3Store.create

    def create(self: S3Store, path: str, text: str) -> None:
        if "manifest-" in path and not overtaken:
            overtaken.append(path)
            monkeypatch.setattr(
                s3_leases.S3Lease, "try_acquire", lambda self: None
            )  # as if the lease had run out
            load_rows(other, new_load(TABLE, "truncate", pipeline="another"), rows(10, 12))
            monkeypatch.undo()
        plain(self, path, text)

    monkeypatch.setattr(S3Store, "create", create)
    with pytest.raises(FlowError):
        load_rows(target, new_load(TABLE), rows(3, 5))
    assert overtaken
    assert ids(lake) == [10, 11]
    target.sweep_staging(PIPELINE, TARGET)
    load_rows(target, new_load(TABLE), rows(3, 5))
    assert ids(lake) == [3, 4, 10, 11]
    assert_tidy(lake)


@pytest.mark.parametrize("name", ["orders", "fresh"])
def test_a_commit_that_comes_after_others_used_its_number_and_dropped_it_is_no_success(
    lake: S3Lake, target: BatchTarget, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    other, table = lake.backend().target(), replace(TABLE, name=name)
    before = [row["id"] for row in lake.rows(table)]
    late: list[str] = []
    plain = S3Store.create

    def create(self: S3Store, path: str, text: str) -> None:
        if "manifest-" in path and not late:
            late.append(path)
            monkeypatch.setattr(
                s3_leases.S3Lease, "try_acquire", lambda self: None
            )  # as if the lease had run out
            for number in (10, 11, 12):
                load_rows(other, new_load(table, pipeline="another"), rows(number, number + 1))
            monkeypatch.undo()
            with pytest.raises(FileNotFoundError):
                self.read(path)
        plain(self, path, text)

    monkeypatch.setattr(S3Store, "create", create)
    with pytest.raises(TargetFailed, match="it lost its lock") as raised:
        load_rows(target, new_load(table, batch_key="slot:1"), rows(3, 5))
    assert "not known" in (raised.value.state or "")
    assert late
    assert sorted(row["id"] for row in lake.rows(table)) == [*before, 10, 11, 12]
    target.sweep_staging(PIPELINE, TARGET)
    assert load_rows(target, new_load(table, batch_key="slot:1"), rows(3, 5)).rows.inserted == 2
    assert sorted(row["id"] for row in lake.rows(table)) == [*before, 3, 4, 10, 11, 12]


@pytest.mark.slow
def test_a_server_that_restarts_while_a_load_is_written_costs_nothing_but_time() -> None:
    with running_server() as server, proxied(server.port) as proxy:
        lake = S3Lake(server, server.create_bucket("restarts"))
        target = lake.backend(proxy.endpoint).target()
        load_rows(target, new_load(TABLE), rows(0, 3))
        for number, place in enumerate(("staging/.*parquet", "shop/orders/part-", "manifest-")):
            with proxy.failing(None, times=1, method="PUT", path=place, then=server.restart) as fault:
                load_rows(target, new_load(TABLE), rows(3 + number, 4 + number))
            assert fault.met == 1
        assert ids(lake) == [0, 1, 2, 3, 4, 5]
        assert_tidy(lake)


# ------------------------------------------------------------------ the manifests


def test_replaced_files_stay_for_readers_that_have_begun(
    lake: S3Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = lake.backend().target()
    load_rows(target, new_load(TABLE), rows(0, 3))
    before = lake.published(TABLE)
    load_rows(target, new_load(TABLE, "truncate"), rows(3, 5))
    target.sweep_staging(PIPELINE, TARGET)
    assert lake.replaced() == before
    assert set(before) < set(lake.listed(TABLE))
    monkeypatch.setattr(s3_table_storage, "KEEP_REPLACED", dt.timedelta(seconds=-2))
    target.sweep_staging(PIPELINE, TARGET)
    assert lake.listed(TABLE) == lake.published(TABLE)
    assert lake.replaced() == []
    load_rows(target, new_load(TABLE, "truncate"), rows(7, 9))
    assert lake.listed(TABLE) == lake.published(TABLE)
    assert ids(lake) == [7, 8]


def test_files_of_others_outlive_a_refresh_of_the_table_that_they_became(
    lake: S3Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_table_storage, "KEEP_REPLACED", dt.timedelta(seconds=-2))
    target = lake.backend().target()
    load_rows(target, new_load(TABLE), rows(0, 3))
    (name,) = lake.listed(TABLE)
    client, folder = lake.server.client(), f"{lake.prefix}/shop"
    theirs = {"Bucket": lake.bucket, "Key": f"{folder}/orders/{name}"}
    client.copy_object(CopySource=theirs, Bucket=lake.bucket, Key=f"{folder}/others/theirs.parquet")
    others = replace(TABLE, name="others")
    load_rows(target, new_load(others), rows(3, 5))
    assert len(lake.rows(others)) == 5
    for _ in range(2):
        load_rows(target, new_load(others, "truncate"), rows(5, 7))
    assert [row["id"] for row in lake.rows(others)] == [5, 6]
    assert sorted(lake.listed(others)) == sorted([*lake.published(others), "theirs.parquet"])


def test_old_ledger_entries_are_sealed_and_still_found(lake: S3Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_state, "SEALED_ENTRIES", 2)
    target = lake.backend().target()
    for number in range(5):
        load_rows(target, new_load(TABLE, batch_key=f"slot:{number}"), rows(number, number + 1))
    assert [e.batch_key for e in target.ledger(PIPELINE, TARGET)] == [f"slot:{n}" for n in (4, 3, 2, 1, 0)]
    assert load_rows(target, new_load(TABLE, batch_key="slot:0"), rows(0, 1)).duplicate
    assert len([name for name in lake.hidden("tables/") if "/ledger-" in name]) == 2
    assert len([name for name in lake.hidden("tables/") if "/manifest-" in name]) == 2


def test_a_table_inside_another_is_refused(lake: S3Lake) -> None:
    target = lake.backend().target()
    prepare(target, TABLE)
    inner = TableSpec("shop", "orders/inner", TABLE.columns)
    with pytest.raises(FlowError, match="would be inside 'shop/orders'"):
        target.inspect(inner)


# ------------------------------------------------------------------ runs that are killed, runs that race

PIPELINES = """
from typing import Annotated
from ematix_flow import BigInt, Integer, ematix, pk

@ematix.connection
class source:
    kind = "sqlite"
    path = {source!r}

@ematix.connection
class target:
    kind = "object_store_s3"
    format = "parquet"
    bucket = {bucket!r}
    prefix = {prefix!r}
    endpoint = {endpoint!r}
    region = "us-east-1"
    access_key_id = {access!r}
    secret_access_key = {secret!r}

@ematix.table(schema="shop")
class Orders:
    id: Annotated[BigInt, pk()]
    at: Integer

@ematix.pipeline(
    target=Orders, source_connection="source", target_connection="target",
    incremental=True, watermark_column="at", force_path="copy",
)
def load(conn):
    return "SELECT id, at FROM orders"
"""


@pytest.fixture(scope="module")
def runs() -> Iterator[ForkedRuns]:
    with forked_runs() as warm:
        yield warm


def fill(folder: Path, first: int, last: int) -> None:
    with closing(sqlite3.connect(folder / "source.db")) as database, database:
        database.execute("CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, at INTEGER)")
        database.executemany("INSERT INTO orders VALUES (:id, :at)", rows(first, last))


def declare(folder: Path, lake: S3Lake, endpoint: str | None = None) -> None:
    text = PIPELINES.format(
        source=str(folder / "source.db"),
        bucket=lake.bucket,
        prefix=lake.prefix,
        endpoint=endpoint or lake.server.endpoint,
        access=lake.server.keys.access,
        secret=lake.server.keys.secret,
    )
    (folder / f"{MODULE}.py").write_text(text)


@pytest.mark.slow
def test_a_run_that_is_killed_anywhere_leaves_nothing_and_the_next_is_exact(
    tmp_path: Path, lake: S3Lake, runs: ForkedRuns
) -> None:
    declare(tmp_path, lake)
    points = ("task.staged", "apply.began", "files.version_written", "files.after_publish", "staging.dropped")
    for number, point in enumerate(points):
        before = list(range(5 * number))
        fill(tmp_path, 5 * number, 5 * number + 5)
        killed = runs.run(tmp_path, fault=f"{point}=kill")
        assert killed.killed, (point, killed.told)
        after = [*before, *range(5 * number, 5 * number + 5)]
        assert ids(lake) in (before, after), point
        ended = runs.run(tmp_path)
        assert ended.code == 0, (point, ended.told)
        assert ids(lake) == after, point
        assert_tidy(lake)


@pytest.mark.slow
def test_a_run_that_is_killed_while_it_uploads_leaves_nothing(
    tmp_path: Path, lake: S3Lake, proxy: S3Proxy, runs: ForkedRuns
) -> None:
    declare(tmp_path, lake, proxy.endpoint)
    fill(tmp_path, 0, 5)
    assert runs.run(tmp_path).code == 0
    fill(tmp_path, 5, 9)
    uploading, dead = tmp_path / "uploading", threading.Event()

    def hold() -> None:
        uploading.touch()
        dead.wait(60)

    with proxy.failing(None, times=1, path="staging/.*parquet", then=hold) as fault:
        killed = runs.run(tmp_path, kill_when=uploading)
        dead.set()
    assert killed.killed
    assert fault.met == 1, "it was not killed while it uploaded"
    assert ids(lake) == [0, 1, 2, 3, 4]
    assert runs.run(tmp_path).code == 0
    assert ids(lake) == list(range(9))
    assert_tidy(lake)


@pytest.mark.slow
def test_of_runs_that_start_at_once_one_loads_and_the_others_name_it(
    tmp_path: Path, lake: S3Lake, runs: ForkedRuns
) -> None:
    declare(tmp_path, lake)
    for turn in range(2):
        fill(tmp_path, 5 * turn, 5 * turn + 5)
        ended = runs.race(tmp_path, 4, gate=True)
        assert sorted(outcome.code for outcome in ended) == [0, 4, 4, 4], [o.told for o in ended]
        refused = [outcome.told for outcome in ended if outcome.code == 4]
        assert all(told["type"] == "PipelineLocked" and "since" in told["what"] for told in refused)
        assert ids(lake) == list(range(5 * turn + 5))
    assert_tidy(lake)
