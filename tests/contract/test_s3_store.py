"""A bucket as a place for files, on a real S3 server."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ematix_flow.backends.stores import s3_client, s3_leases, s3_store
from ematix_flow.backends.stores.s3_objects import S3ObjectStore
from ematix_flow.backends.stores.s3_store import HIDDEN, S3Store
from ematix_flow.errors import CannotConnect, PipelineLocked, TargetFailed
from ematix_flow.spec.connections import ObjectStoreS3Connection
from tests.services.s3 import S3Server, running_server
from tests.services.s3_proxy import S3Proxy, proxied
from tests.waiting import wait_until


def connection(server: S3Server, bucket: str, **more: Any) -> ObjectStoreS3Connection:
    fields: dict[str, Any] = {"prefix": "lake", **server.connection_fields(bucket), **more}
    return ObjectStoreS3Connection(name="lake", **fields)


@pytest.fixture
def store(s3: S3Server, s3_bucket: str) -> S3Store:
    return S3Store(connection(s3, s3_bucket))


@pytest.fixture
def proxy(s3: S3Server) -> Iterator[S3Proxy]:
    with proxied(s3.port) as found:
        yield found


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer tries, so that a test of a broken server takes no half minute."""
    monkeypatch.setattr(s3_client, "ATTEMPTS", 2)


# ------------------------------------------------------------------ files


def test_files_are_created_listed_read_and_removed(store: S3Store) -> None:
    for path in ("a/1.json", "a/2.json", "a/deep/3.json", "b.json", "ab/4.json"):
        store.create(path, f"text of {path} – ü")
    assert store.names("a") == ["1.json", "2.json"]
    assert store.names("") == ["b.json"]
    assert [name for name in store.folders("") if not name.startswith(".")] == ["a", "ab"]
    size = len("text of a/deep/3.json – ü".encode())
    assert sorted(path for path, _ in store.files_below("a")) == ["1.json", "2.json", "deep/3.json"]
    assert dict(store.files_below("a"))["deep/3.json"] == size
    assert sorted(dict(store.files_below("a", without=("deep", "1.json")))) == ["1.json", "2.json"]
    assert store.read("a/deep/3.json") == "text of a/deep/3.json – ü"
    store.remove("a/1.json")
    store.remove("a/1.json")
    assert store.names("a") == ["2.json"]
    assert store.remove_tree("a")
    assert not store.remove_tree("a")
    assert store.names("ab") == ["4.json"]
    assert store.uri("a/b") == f"s3a://{store.connection.bucket}/lake/a/b"


@pytest.mark.parametrize("status", [403, 501])
def test_folders_are_removed_also_where_uploads_cannot_be_listed(
    s3: S3Server, s3_bucket: str, proxy: S3Proxy, status: int
) -> None:
    store = S3Store(connection(s3, s3_bucket, endpoint=proxy.endpoint))
    store.create("staging/1.json", "{}")
    with proxy.failing(status, path="[?&]uploads") as fault:
        assert store.remove_tree("staging")
    assert fault.met == 1
    assert store.names("staging") == []


def test_an_upload_that_another_ended_does_not_keep_the_rest(
    s3: S3Server, s3_bucket: str, proxy: S3Proxy
) -> None:
    store, client = S3Store(connection(s3, s3_bucket, endpoint=proxy.endpoint)), s3.client()
    for name in ("1", "2"):
        client.create_multipart_upload(Bucket=s3_bucket, Key=f"lake/staging/{name}")
    with proxy.failing(404, times=1, method="DELETE", path="staging/1"):
        store.remove_tree("staging")
    left = client.list_multipart_uploads(Bucket=s3_bucket).get("Uploads", ())
    assert [upload["Key"] for upload in left] == ["lake/staging/1"]


def test_a_file_that_is_not_there_is_not_found(store: S3Store) -> None:
    with pytest.raises(FileNotFoundError):
        store.read("nothing")
    with pytest.raises(FileNotFoundError):
        store.open("nothing")
    assert store.names("nothing") == []


def test_of_many_creators_of_one_file_one_wins(store: S3Store) -> None:
    start = threading.Barrier(8)

    def create(number: int) -> int | None:
        start.wait()
        try:
            store.create("commit-1", str(number))
        except FileExistsError:
            return None
        return number

    with ThreadPoolExecutor(8) as pool:
        winners = [number for number in pool.map(create, range(8)) if number is not None]
    assert len(winners) == 1
    assert store.read("commit-1") == str(winners[0])


@pytest.mark.parametrize("size", [0, 1, 40_000_000])
def test_a_file_is_brought_whole_and_read_from_anywhere(store: S3Store, tmp_path: Path, size: int) -> None:
    content = bytes(range(256)) * (size // 256 + 1)
    content = content[:size]
    local = tmp_path / "big"
    local.write_bytes(content)
    store.upload(local, "data/big")
    assert not local.exists()
    with store.open("data/big") as file:
        file.seek(-min(size, 10), 2)
        assert file.read() == content[-10:]
        file.seek(0)
        assert file.read() == content
    store.copy("data/big", "data/copy")
    assert dict(store.files_below("data")) == {"big": size, "copy": size}


def test_what_a_broken_upload_left_is_removed_with_its_folder(store: S3Store, s3: S3Server) -> None:
    client, bucket = s3.client(), store.connection.bucket
    client.create_multipart_upload(Bucket=bucket, Key="lake/staging/half")
    store.remove_tree("staging")
    assert not client.list_multipart_uploads(Bucket=bucket).get("Uploads")


def test_a_thousand_and_more_files_are_listed_and_removed(store: S3Store) -> None:
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda n: store.create(f"many/{n:05d}", "x"), range(1_010)))
    assert len(store.names("many")) == 1_010
    store.remove_tree("many")
    assert store.names("many") == []


# ------------------------------------------------------------------ what goes wrong


def test_errors_that_pass_are_sat_out(s3: S3Server, s3_bucket: str, proxy: S3Proxy) -> None:
    store = S3Store(connection(s3, s3_bucket, endpoint=proxy.endpoint))
    for status in (500, 503, None):
        with proxy.failing(status, times=2) as fault:
            store.create(f"after-{status}", "x")
        assert fault.met == 2


def test_a_creation_whose_answer_was_lost_is_ours(s3: S3Server, s3_bucket: str, proxy: S3Proxy) -> None:
    store = S3Store(connection(s3, s3_bucket, endpoint=proxy.endpoint))
    store.require_conditional_writes()
    with proxy.failing(500, times=1, method="PUT", after=True) as fault:
        store.create("commit", "mine")
    assert fault.met == 1
    with pytest.raises(FileExistsError):
        store.create("commit", "mine")


def write_on_conditions(there: ObjectStoreS3Connection) -> None:
    """Everything that is written to a bucket on a condition, the probe of a new place included."""
    store = S3Store(there)
    with store.lock("p", "t", uuid.uuid4()), store.table_lock("shop/orders"):
        store.require_locks_held()
        store.create("commit", "mine")
    with pytest.raises(FileExistsError):
        store.create("commit", "another's")
    objects = S3ObjectStore(there)
    assert objects.create("run", {"state": "running"})
    first = objects.read("run")
    assert first is not None and objects.replace("run", {"state": "done"}, first.tag)
    assert not objects.create("run", {"state": "running"})
    assert not objects.replace("run", {"state": "lost"}, first.tag)
    assert store.names(f"{HIDDEN}/locks") == []


def test_every_conditional_write_whose_answer_was_lost_is_known_as_our_own(
    s3: S3Server, s3_bucket: str, proxy: S3Proxy
) -> None:
    conditions = ("if-none-match", "if-match")
    write_on_conditions(connection(s3, s3_bucket, endpoint=proxy.endpoint, prefix="none-lost"))
    count = sum(bool(headers.keys() & set(conditions)) for headers in proxy.headers)
    assert count > 10
    for number in range(count):
        there = connection(s3, s3_bucket, endpoint=proxy.endpoint, prefix=f"lost-{number}")
        with proxy.failing(500, times=1, after=True, headers=conditions, passed=number) as fault:
            write_on_conditions(there)
        assert fault.met == 1


def test_a_server_that_only_fails_is_named_with_its_answer(
    s3: S3Server, s3_bucket: str, proxy: S3Proxy, impatient: None
) -> None:
    store = S3Store(connection(s3, s3_bucket, endpoint=proxy.endpoint))
    store.require_conditional_writes()
    with proxy.failing(503), pytest.raises(TargetFailed, match="503 SlowDown") as raised:
        store.create("x", "x")
    assert raised.value.next_step
    with proxy.failing(500), pytest.raises(CannotConnect), store.lock("p", "t", uuid.uuid4()):
        pytest.fail("the lock was given")


def test_wrong_keys_are_distinguished_from_a_missing_bucket(s3: S3Server, s3_bucket: str) -> None:
    with pytest.raises(CannotConnect, match="refused the access keys") as raised:
        S3Store(connection(s3, s3_bucket, secret_access_key="wrong-secret-canary")).check()
    assert "canary" not in str(raised.value)
    with pytest.raises(CannotConnect, match="refused the access keys"):
        S3Store(connection(s3, s3_bucket, access_key_id="NOBODY")).check()
    with pytest.raises(CannotConnect, match="no bucket 'not-there'"):
        S3Store(connection(s3, "not-there")).check()


def test_a_server_that_is_not_there_cannot_be_reached(s3: S3Server, s3_bucket: str, impatient: None) -> None:
    with pytest.raises(CannotConnect, match=r"cannot reach the S3 server at http://127\.0\.0\.1:1") as raised:
        S3Store(connection(s3, s3_bucket, endpoint="http://127.0.0.1:1")).check()
    assert "endpoint" in (raised.value.next_step or "")


def test_no_credentials_at_all_are_asked_for(
    s3: S3Server, s3_bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(CannotConnect, match="no S3 credentials"):
        S3Store(connection(s3, s3_bucket, access_key_id="", secret_access_key="")).check()
    with pytest.raises(CannotConnect, match="cannot get the S3 credentials"):
        S3Store(connection(s3, s3_bucket, access_key_id="", secret_access_key="", profile="missing")).check()


def test_keys_come_from_the_environment_or_a_profile(
    s3: S3Server, s3_bucket: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    without = {"access_key_id": "", "secret_access_key": ""}
    profiles = tmp_path / "credentials"
    profiles.write_text(
        f"[work]\naws_access_key_id={s3.keys.access}\naws_secret_access_key={s3.keys.secret}\n"
    )
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(profiles))
    S3Store(connection(s3, s3_bucket, **without, profile="work")).check()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3.keys.access)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3.keys.secret)
    found = S3Store(connection(s3, s3_bucket, **without, prefix="env")).check()
    assert found == f"s3://{s3_bucket}/env on {s3.endpoint}"


def test_certificates_are_verified(tmp_path: Path) -> None:
    with running_server(tls=True) as server:
        bucket = server.create_bucket("tls")
        assert server.certificates is not None
        authority = str(server.certificates.authority)
        secure = server.secure_endpoint
        with pytest.raises(CannotConnect, match="cannot trust the certificate") as raised:
            S3Store(connection(server, bucket, endpoint=secure)).check()
        assert "ca_cert_path" in (raised.value.next_step or "")
        S3Store(connection(server, bucket, endpoint=secure, ca_cert_path=authority)).check()
        S3Store(connection(server, bucket, endpoint=secure, verify_tls=False)).check()


def test_a_server_that_ignores_conditions_is_refused(s3: S3Server, proxy: S3Proxy) -> None:
    with s3.open_bucket() as bucket:
        anybody = {"access_key_id": "", "secret_access_key": "", "anonymous": True}
        S3Store(connection(s3, bucket, **anybody)).check()
        for header in ("if-none-match", "if-match"):
            proxy.deaf_to = (header,)
            deaf = S3Store(connection(s3, bucket, **anybody, endpoint=proxy.endpoint))
            with pytest.raises(CannotConnect, match="ignores conditions on writes"):
                deaf.check()
            with pytest.raises(CannotConnect, match="would both succeed"), deaf.lock("p", "t", uuid.uuid4()):
                pytest.fail("the lock was given")


def test_a_bucket_that_may_only_be_read_says_so(s3: S3Server, s3_bucket: str, proxy: S3Proxy) -> None:
    store = S3Store(connection(s3, s3_bucket, endpoint=proxy.endpoint))
    with proxy.failing(403, method="PUT"):
        assert store.check().endswith("(read only)")


def test_a_requester_that_pays_says_so_in_each_request(s3: S3Server, s3_bucket: str, proxy: S3Proxy) -> None:
    store = S3Store(connection(s3, s3_bucket, endpoint=proxy.endpoint, requester_pays=True))
    store.create("x", "1")
    assert store.read("x") == "1"
    assert proxy.headers and all(h.get("x-amz-request-payer") == "requester" for h in proxy.headers)


def test_a_store_travels_without_showing_its_secret(store: S3Store) -> None:
    store.create("x", "1")
    there = pickle.loads(pickle.dumps(store))
    assert there.read("x") == "1"
    assert there == store
    for shown in (repr(store), str(store), store.identity(), repr(store.connection)):
        assert store.connection.secret_access_key not in shown


# ------------------------------------------------------------------ locks

LOCKS = f"{HIDDEN}/locks"


def only_lock(store: S3Store) -> str:
    (name,) = store.names(LOCKS)
    return f"{LOCKS}/{name}"


def is_expired(store: S3Store) -> bool:
    """Whether the only lock in the bucket has expired, as another process sees it."""
    status = s3_leases.S3Lease(store.connection, store.key(only_lock(store)), "it").read_status()
    return status is not None and status.is_expired


def test_a_second_run_is_refused_with_the_holder_of_the_lock(store: S3Store, s3: S3Server) -> None:
    first = uuid.uuid4()
    with store.lock("orders", "lake.orders", first):
        with pytest.raises(PipelineLocked) as raised, store.lock("orders", "lake.orders", uuid.uuid4()):
            pytest.fail("the lock was given twice")
        assert str(first) in raised.value.what
        assert "since 20" in raised.value.what and "UTC" in raised.value.what
        with store.lock("orders", "lake.other", uuid.uuid4()):
            store.require_locks_held()
    with store.lock("orders", "lake.orders", uuid.uuid4()):
        pass
    assert s3.keys_in(store.connection.bucket, "lake/.ematix_flow/locks/") == []


def test_a_lease_is_renewed_as_long_as_its_holder_lives(
    store: S3Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_leases, "LEASE_SECONDS", 2.0)
    monkeypatch.setattr(s3_leases, "HEARTBEAT_SECONDS", 0.5)
    with store.lock("p", "t", uuid.uuid4()):
        # nine renewals take 4.5 s at least, in which the lease would have expired without them
        wait_until(lambda: json.loads(store.read(only_lock(store)))["beat"] >= 10)
        with pytest.raises(PipelineLocked), store.lock("p", "t", uuid.uuid4()):
            pytest.fail("the lock was given twice")
        store.require_locks_held()


def test_a_lease_of_a_dead_holder_is_taken_over_and_the_dead_one_notices(
    store: S3Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_leases, "LEASE_SECONDS", 1.0)
    monkeypatch.setattr(s3_leases, "HEARTBEAT_SECONDS", 600.0)  # it never gets to renew
    with store.lock("p", "t", uuid.uuid4()):
        wait_until(lambda: is_expired(store))
        second = store.lock("p", "t", uuid.uuid4())
        monkeypatch.setattr(s3_leases, "LEASE_SECONDS", 60.0)
        with second:
            with pytest.raises(TargetFailed, match="lost its lock") as raised:
                store.require_locks_held()
            assert "took it over" in raised.value.what
            assert raised.value.state == "nothing was committed"


def test_loads_of_one_process_do_not_answer_for_the_locks_of_each_other(
    store: S3Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_leases, "HEARTBEAT_SECONDS", 600.0)
    taken, asked = threading.Event(), threading.Event()

    def another() -> None:
        with store.lock("another", "t", uuid.uuid4()):
            taken.set()
            asked.wait()

    thread = threading.Thread(target=another)
    thread.start()
    taken.wait()
    try:
        for name in store.names(".ematix_flow/locks"):
            store.remove(f".ematix_flow/locks/{name}")
        with store.lock("p", "t", uuid.uuid4()):
            store.require_locks_held()
        with pytest.raises(TargetFailed, match="lost its lock on pipeline 'another'"):
            store.require_locks_held()  # a reader that took none asks for all
    finally:
        asked.set()
        thread.join()


def test_a_lease_that_was_given_back_is_not_missed(store: S3Store) -> None:
    lease = s3_leases.S3Lease(store.connection, "lake/lease", "it")
    assert lease.try_acquire() is None
    lease.release()
    lease.renew_or_fail()


def test_a_lock_is_given_back_also_where_deletes_know_no_conditions(
    s3: S3Server, s3_bucket: str, proxy: S3Proxy
) -> None:
    store = S3Store(connection(s3, s3_bucket, endpoint=proxy.endpoint))
    store.require_conditional_writes()
    with (
        proxy.failing(501, times=1, method="DELETE", path="locks") as fault,
        store.lock("p", "t", uuid.uuid4()),
    ):
        pass
    assert fault.met == 1
    sent = [h for (method, _), h in zip(proxy.requests, proxy.headers, strict=True) if method == "DELETE"]
    assert "if-match" in sent[-2] and "if-match" not in sent[-1]
    assert s3.keys_in(s3_bucket, "lake/.ematix_flow/locks/") == []


def test_a_holder_that_died_on_this_machine_is_not_waited_for(store: S3Store) -> None:
    held = (
        "import os, pickle, sys, uuid\n"
        "store = pickle.load(sys.stdin.buffer)\n"
        "store.lock('p', 't', uuid.uuid4()).__enter__()\n"
        "os._exit(0)\n"
    )
    subprocess.run([sys.executable, "-c", held], input=pickle.dumps(store), check=True)
    began = time.monotonic()
    with store.lock("p", "t", uuid.uuid4()):
        assert time.monotonic() - began < 30


def test_of_many_that_take_over_one_wins(store: S3Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3_leases, "HEARTBEAT_SECONDS", 600.0)
    dead = s3_leases.S3Lease(store.connection, "lake/lease", "it", seconds=1.0)
    assert dead.try_acquire() is None
    wait_until(lambda: (status := dead.read_status()) is not None and status.is_expired)
    start = threading.Barrier(6)
    takers = [s3_leases.S3Lease(store.connection, "lake/lease", "it") for _ in range(6)]

    def take(lease: s3_leases.S3Lease) -> bool:
        start.wait()
        return lease.try_acquire() is None

    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(take, takers)).count(True) == 1
    with pytest.raises(TargetFailed):
        dead.renew_or_fail()
    for lease in (dead, *takers):
        lease.release()


def test_a_lock_whose_answer_was_lost_is_held(s3: S3Server, s3_bucket: str, proxy: S3Proxy) -> None:
    store = S3Store(connection(s3, s3_bucket, endpoint=proxy.endpoint))
    store.require_conditional_writes()
    with (
        proxy.failing(500, times=1, method="PUT", path="locks", after=True) as fault,
        store.lock("p", "t", uuid.uuid4()),
    ):
        store.require_locks_held()
    assert fault.met == 1


def test_a_holder_that_is_cut_off_for_too_long_must_not_commit(
    s3: S3Server, s3_bucket: str, proxy: S3Proxy, impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_leases, "LEASE_SECONDS", 0.0)  # it expires at once
    monkeypatch.setattr(s3_leases, "HEARTBEAT_SECONDS", 600.0)
    store = S3Store(connection(s3, s3_bucket, endpoint=proxy.endpoint))
    with (
        store.lock("p", "t", uuid.uuid4()),
        proxy.failing(None),
        pytest.raises(TargetFailed, match="could not be renewed"),
    ):
        store.require_locks_held()


def test_loads_of_one_table_wait_for_each_other(store: S3Store, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    order: list[str] = []

    def second() -> None:
        with store.table_lock("sales/orders"):
            order.append("second")

    with store.table_lock("sales/orders"):
        thread = threading.Thread(target=second)
        thread.start()
        with store.table_lock("sales/other"):
            wait_until(lambda: "waiting for another load" in caplog.text)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]
    assert caplog.text.count("waiting for another load of sales/orders to end: (pid ") == 1


def test_waiting_too_long_for_a_table_names_the_holder_of_its_lock(
    store: S3Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_store, "TABLE_LOCK_SECONDS", 0.0)
    with (
        store.table_lock("sales/orders"),
        pytest.raises(TargetFailed, match="another load has been changing 'sales/orders'"),
        store.table_lock("sales/orders"),
    ):
        pytest.fail("the lock was given twice")
