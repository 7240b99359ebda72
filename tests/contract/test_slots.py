"""One contract over every store of slots: opened once, held by one, ended once, by the store's own clock."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from ematix_flow.backends.state_stores.run_logs import open_slots, sql_tables
from ematix_flow.backends.stores.object_urls import open_object_store
from ematix_flow.state.slots.base import Claim, Slot, SlotRecord, SlotStore
from ematix_flow.state.slots.memory import MemorySlotStore
from ematix_flow.state.slots.objects import ObjectSlotStore
from ematix_flow.state.slots.sql import SqlSlotStore
from ematix_flow.state.sql.sqlite import sqlite_engine
from tests.contract.chosen import shared_out
from tests.contract.object_stores import OBJECTS, object_url

NOON = dt.datetime(2026, 3, 29, 12, tzinfo=dt.timezone.utc)
SLOT = Slot("orders", NOON)


class Clock:
    """A clock that changes only when it is set."""

    def __init__(self) -> None:
        self.at = NOON

    def __call__(self) -> dt.datetime:
        return self.at

    def pass_(self, seconds: float) -> None:
        self.at += dt.timedelta(seconds=seconds)


@pytest.fixture
def clock() -> Clock:
    return Clock()


def server_engine(url: str, driver: str) -> sa.Engine:
    return sa.create_engine(
        sa.make_url(url).set(drivername=driver), poolclass=sa.pool.NullPool, isolation_level="READ COMMITTED"
    )


Opens = Callable[[Callable[[], dt.datetime] | None], SlotStore]


STORES = ["memory", "sqlite", "postgres", "s3", *shared_out("duckdb", "mariadb"), *shared_out("gcs", "azure")]


@pytest.fixture(params=STORES)
def opens(request: pytest.FixtureRequest, tmp_path: Path) -> Opens:
    """Opens the same store again, with the given clock or with its own."""
    kind = request.param
    if kind == "memory":
        shared = dict[object, MemorySlotStore]()
        return lambda clock: shared.setdefault(clock, MemorySlotStore(clock) if clock else MemorySlotStore())
    if kind in OBJECTS:
        url = object_url(request, kind)
        return lambda clock: ObjectSlotStore(open_object_store(url), clock)
    if kind == "duckdb":
        tables = sql_tables(f"duckdb://{tmp_path / 'slots.duckdb'}")
        return lambda clock: tables.open_store(partial(SqlSlotStore, clock=clock))
    if kind == "sqlite":
        engine = sqlite_engine(tmp_path / "slots.db")
    elif kind == "postgres":
        engine = server_engine(request.getfixturevalue("pg_database"), "postgresql+psycopg")
    else:
        engine = server_engine(request.getfixturevalue("mariadb_database"), "mysql+pymysql")
    return lambda clock: SqlSlotStore(engine, "here", clock)


@pytest.fixture
def store(opens: Opens, clock: Clock) -> SlotStore:
    return opens(clock)


def claimed(store: SlotStore, holder: str = "a") -> Any:
    seen = store.get(SLOT)
    assert seen is not None
    return store.claim(seen, holder, 30.0)


def test_a_slot_is_opened_once(store: SlotStore) -> None:
    later = Slot("orders", NOON + dt.timedelta(minutes=1))
    assert store.open([SLOT, later, SLOT]) == 2
    assert store.open([SLOT]) == 0
    assert [record.slot for record in store.unfinished()] == [SLOT, later]
    assert store.newest(["orders", "others"])["orders"].slot == later


def test_of_many_pipelines_those_are_reported_that_are_asked_for(store: SlotStore) -> None:
    earlier = NOON - dt.timedelta(minutes=1)
    names = [f"p{number}" for number in range(20)]
    assert store.open([Slot(name, earlier) for name in names]) == 20
    assert (
        store.open([*(Slot(name, earlier) for name in names), *(Slot(name, NOON) for name in names[:3])]) == 3
    )
    assert store.last_fires(["p1", "p9", "none"]) == {"p1": NOON, "p9": earlier}
    assert {name: record.slot.fire_time for name, record in store.newest(["p2", "p3", "none"]).items()} == {
        "p2": NOON,
        "p3": earlier,
    }
    assert store.newest([]) == {} and store.last_fires([]) == {}


def test_a_slot_that_is_only_noted_is_never_run(store: SlotStore) -> None:
    store.open([SLOT], "skipped", "missed")
    assert store.unfinished() == []
    found = store.get(SLOT)
    assert found is not None and (found.status, found.reason) == ("skipped", "missed")
    assert store.open([SLOT]) == 0


def test_one_holder_at_a_time(store: SlotStore) -> None:
    store.open([SLOT])
    seen = store.get(SLOT)
    assert seen is not None
    first = store.claim(seen, "a", 30)
    assert first is not None and first.fence == 1
    assert store.claim(seen, "b", 30) is None  # as it was seen, it is no more
    assert claimed(store, "b") is None


def test_a_claim_that_is_not_kept_is_taken_over_and_fenced(store: SlotStore, clock: Clock) -> None:
    store.open([SLOT])
    first = claimed(store, "a")
    clock.pass_(31)
    second = claimed(store, "b")
    assert second is not None and second.fence == 2
    assert not store.renew(first, 30)
    assert not store.end(first, "succeeded")
    assert not store.retry_later(first, 1)
    assert store.end(second, "succeeded")
    assert not store.end(second, "succeeded")


def test_of_two_runs_that_were_started_for_one_claim_one_begins(store: SlotStore, clock: Clock) -> None:
    store.open([SLOT])
    claim = claimed(store)
    clock.pass_(60)  # it was late, and no other process had taken it over
    assert store.begin(claim, 30, "a run")
    assert not store.begin(claim, 30, "another run")
    begun = store.get(SLOT)
    assert begun is not None and (begun.begun, begun.holder) == (True, "a run")
    assert claimed(store, "b") is None  # it is held from its beginning on
    clock.pass_(30)
    second = claimed(store, "b")
    assert second is not None
    assert not store.begin(claim, 30)
    assert store.begin(second, 30)


def test_a_claim_that_is_kept_stays(store: SlotStore, clock: Clock) -> None:
    store.open([SLOT])
    claim = claimed(store, "a")
    for _ in range(3):
        clock.pass_(20)
        assert store.renew(claim, 30)
    assert claimed(store, "b") is None


def test_an_expired_claim_that_nobody_took_may_still_end(store: SlotStore, clock: Clock) -> None:
    store.open([SLOT])
    claim = claimed(store)
    clock.pass_(60)
    assert store.end(claim, "succeeded", "late, and nobody minded")


def test_a_failed_attempt_waits_and_is_counted(store: SlotStore, clock: Clock) -> None:
    store.open([SLOT])
    assert store.retry_later(claimed(store), 20, "no connection")
    found = store.get(SLOT)
    assert found is not None
    assert (found.status, found.failures, found.reason, found.holder) == ("waiting", 1, "no connection", None)
    assert claimed(store) is None
    clock.pass_(20)
    again = claimed(store)
    assert again is not None and (again.fence, again.failures) == (2, 1)


def test_only_a_holder_without_heartbeats_counts_as_dead(store: SlotStore, clock: Clock) -> None:
    store.open([SLOT])
    for _ in range(5):
        claim = claimed(store)
        assert claim is not None and (claim.failures, claim.deaths) == (0, 0)
        store.retry_later(claim, 0, "another run has the lock", failed=False)
    for _ in range(5):  # handed to a run that did not begin in time
        assert claimed(store) is not None
        clock.pass_(31)
    lost = claimed(store)
    assert lost is not None and lost.deaths == 0 and store.begin(lost, 30)
    assert store.renew(lost, 0, "out of memory")  # a process that saw it die need not wait
    again = claimed(store, "b")
    assert again is not None and (again.fence, again.failures, again.deaths) == (12, 0, 1)
    found = store.get(SLOT)
    assert found is not None and (found.deaths, found.reason) == (1, "out of memory")
    store.end(again, "gave_up")
    assert store.reopen(SLOT)
    again = claimed(store)
    assert again is not None and (again.failures, again.deaths) == (0, 0)


def test_what_was_given_up_is_reopened_by_hand_only(store: SlotStore) -> None:
    store.open([SLOT])
    assert not store.reopen(SLOT)
    store.end(claimed(store), "gave_up", "three times")
    assert claimed(store) is None
    assert store.reopen(SLOT)
    again = claimed(store)
    assert again is not None and again.failures == 0
    store.end(again, "succeeded")
    assert not store.reopen(SLOT)


def test_a_slot_that_nobody_holds_is_ended_as_it_was_seen(store: SlotStore, clock: Clock) -> None:
    def seen() -> SlotRecord:
        record = store.get(SLOT)
        assert record is not None
        return record

    store.open([SLOT])
    never_run = seen()
    claim = claimed(store)
    assert not store.end_unclaimed(never_run, "gave_up", "too late")
    assert not store.end_unclaimed(seen(), "gave_up", "a run holds it")
    assert store.retry_later(claim, 60, "it failed")
    waits = seen()
    assert store.end_unclaimed(waits, "gave_up", "stopped by ada")
    assert not store.end_unclaimed(waits, "succeeded", "it does not wait any more")
    given_up = seen()
    assert (given_up.status, given_up.reason, given_up.failures) == ("gave_up", "stopped by ada", 1)
    assert store.unfinished() == []
    clock.pass_(61)
    assert claimed(store) is None
    assert store.end_unclaimed(given_up, "succeeded", "restarted by run 1")
    assert (seen().status, seen().reason) == ("succeeded", "restarted by run 1")
    assert not store.reopen(SLOT)
    assert not store.end_unclaimed(seen(), "gave_up", "it has succeeded")
    assert not store.end_unclaimed(replace(given_up, slot=Slot("unknown", NOON)), "succeeded")


def test_of_a_claim_and_an_end_at_once_one_counts(opens: Opens, clock: Clock) -> None:
    store = opens(clock)
    store.open([SLOT])
    seen = store.get(SLOT)
    assert seen is not None
    together = threading.Barrier(4)

    def act(number: int) -> bool:
        own = opens(clock)
        together.wait()
        if number % 2:
            return own.claim(seen, f"holder {number}", 30) is not None
        return own.end_unclaimed(seen, "gave_up", f"stopped by {number}")

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(act, range(4))) == 1


@pytest.mark.parametrize("kind", OBJECTS)
def test_a_slot_that_is_reopened_while_it_ends_is_still_listed(
    request: pytest.FixtureRequest, kind: str
) -> None:
    objects = open_object_store(object_url(request, kind))
    store, by_hand = ObjectSlotStore(objects), ObjectSlotStore(objects)
    store.open([SLOT])
    remove = objects.remove

    def reopened_first(keys: Sequence[str]) -> None:
        objects.remove = remove  # type: ignore[method-assign]
        assert by_hand.reopen(SLOT)
        remove(keys)

    objects.remove = reopened_first  # type: ignore[method-assign]
    assert store.end(claimed(store), "gave_up")
    assert [record.slot for record in store.unfinished()] == [SLOT]
    store.close()


def test_a_lease_has_one_holder_until_it_expires(store: SlotStore, clock: Clock) -> None:
    first = store.lease("scheduler", "a", 60)
    assert first is not None and store.lease("scheduler", "b", 60) is None
    clock.pass_(50)
    assert store.lease("scheduler", "a", 60) == first
    clock.pass_(50)
    assert store.lease("scheduler", "b", 60) is None
    clock.pass_(11)
    second = store.lease("scheduler", "b", 60)
    assert second is not None and second.fence > first.fence
    store.release(first)  # of no more use
    assert store.lease("scheduler", "a", 60) is None
    store.release(second)
    assert store.lease("scheduler", "a", 60) is not None


@pytest.mark.parametrize("seconds", [0.1, 1, 60])
def test_a_lease_is_kept_from_one_who_asks_for_less_time(
    store: SlotStore, clock: Clock, seconds: float
) -> None:
    assert store.lease("scheduler", "a", 60) is not None
    assert store.lease("scheduler", "b", seconds) is None
    clock.pass_(30)
    assert store.lease("scheduler", "b", seconds) is None


def test_names_are_distinguished_as_they_are_written(store: SlotStore) -> None:
    names = ["Orders", "orders", "ordérs", "orders ", "näme/with %_' \" \\"]
    assert store.open([Slot(name, NOON) for name in names]) == len(names)
    assert {record.slot.pipeline for record in store.unfinished()} == set(names)


def test_of_many_at_once_one_gets_the_slot_and_of_many_runs_of_it_one_begins(
    opens: Opens, clock: Clock
) -> None:
    stores = [opens(clock) for _ in range(6)]
    stores[0].open([SLOT])
    seen = stores[0].get(SLOT)
    assert seen is not None
    together = threading.Barrier(len(stores))

    def claim(number: int) -> Claim | None:
        together.wait()
        return stores[number].claim(seen, f"holder {number}", 30)

    def begin(number: int) -> bool:
        together.wait()
        return stores[number].begin(given, 30)

    with ThreadPoolExecutor(len(stores)) as pool:
        (given,) = filter(None, pool.map(claim, range(len(stores))))
        assert sum(pool.map(begin, range(len(stores)))) == 1


def test_of_many_at_once_one_gets_the_lease(opens: Opens, clock: Clock) -> None:
    stores = [opens(clock) for _ in range(6)]
    together = threading.Barrier(len(stores))

    def lease(number: int) -> object:
        together.wait()
        return stores[number].lease("scheduler", f"holder {number}", 30)

    with ThreadPoolExecutor(len(stores)) as pool:
        answers = list(pool.map(lease, range(len(stores))))
    assert sum(answer is not None for answer in answers) == 1


def test_many_that_make_and_open_at_once_open_each_slot_once(opens: Opens, clock: Clock) -> None:
    wanted = [Slot(name, NOON) for name in "abcde"]
    together = threading.Barrier(4)

    def open_all(_: int) -> int:
        together.wait()
        return opens(clock).open(wanted)

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(open_all, range(4))) == len(wanted)
    assert [record.slot for record in opens(clock).unfinished()] == wanted


def test_the_latest_slot_before_a_moment_is_found(store: SlotStore) -> None:
    minutes = [NOON + dt.timedelta(minutes=n) for n in range(3)]
    store.open([Slot("orders", at) for at in minutes])
    store.open([Slot("others", NOON + dt.timedelta(hours=1))])
    for at, expected in ((minutes[1], minutes[1]), (NOON + dt.timedelta(hours=1), minutes[2])):
        found = store.latest("orders", at)
        assert found is not None and found.slot.fire_time == expected
    assert store.latest("orders", NOON - dt.timedelta(seconds=1)) is None
    assert store.last_fires(["orders", "nobody"]) == {"orders": minutes[2]}
    assert store.open([Slot("orders", minutes[0])]) == 0  # an older one does not become the newest
    assert store.last_fires(["orders"]) == {"orders": minutes[2]}


def test_what_is_old_and_over_is_forgotten_and_the_newest_stays(store: SlotStore) -> None:
    hours = [NOON + dt.timedelta(hours=n) for n in range(4)]
    store.open([Slot("orders", at) for at in (hours[0], hours[2])], "skipped")
    store.open([Slot("orders", hours[1])])
    store.open([Slot("yearly", hours[0])], "skipped")
    assert store.purge(hours[2], "yearly") == 0
    assert store.purge(hours[2]) == 1
    assert store.get(Slot("orders", hours[0])) is None
    assert store.purge(hours[3]) == 0
    assert {name: record.slot.fire_time for name, record in store.newest(["orders", "yearly"]).items()} == {
        "orders": hours[2],
        "yearly": hours[0],
    }
    assert [record.slot.fire_time for record in store.unfinished()] == [hours[1]]


def test_what_is_reopened_while_old_slots_are_forgotten_stays(pg_database: str) -> None:
    with open_slots(pg_database, env={}) as store, open_slots(pg_database, env={}) as other:
        assert isinstance(store, SqlSlotStore)
        later = Slot("orders", NOON + dt.timedelta(hours=1))
        store.open([SLOT, later], "skipped")

        @sa.event.listens_for(store._engine, "before_cursor_execute")
        def reopened(*call: Any) -> None:
            if call[2].startswith("DELETE"):
                assert other.reopen(SLOT)

        assert store.purge(later.fire_time) == 0
        assert [record.slot for record in store.unfinished()] == [SLOT]


def test_what_is_reopened_while_old_objects_are_forgotten_stays(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = object_url(request, "s3")
    objects, other = open_object_store(url), ObjectSlotStore(open_object_store(url))
    store, early = ObjectSlotStore(objects), Slot("orders", NOON - dt.timedelta(hours=1))
    later = Slot("orders", NOON + dt.timedelta(hours=1))
    store.open([early, SLOT, later], "skipped")
    read, removed = objects.read_all, objects.remove

    def read_first(keys: Any) -> Any:
        found = list(read(keys))
        assert not found or other.reopen(SLOT)
        return iter(found)

    def removed_last(keys: Any) -> None:
        assert not other.reopen(early)  # it would be reported as waiting, and be gone
        removed(keys)

    monkeypatch.setattr(objects, "read_all", read_first)
    monkeypatch.setattr(objects, "remove", removed_last)
    assert store.purge(later.fire_time) == 1
    assert other.get(early) is None
    assert [record.slot for record in other.unfinished()] == [SLOT]


def test_what_is_over_stays_while_another_of_its_moment_has_not_ended(store: SlotStore) -> None:
    """It may be the job of a workflow, which would take a slot that it does not know for one to open."""
    later, workflow = NOON + dt.timedelta(hours=1), Slot("workflow:nightly", NOON)
    store.open([SLOT, Slot("orders", later)], "succeeded")
    store.open([workflow])
    assert store.purge(later, "orders") == 0 and store.get(SLOT) is not None
    seen = store.get(workflow)
    assert seen is not None
    claim = store.claim(seen, "a", 30.0)
    assert claim is not None and store.purge(later) == 0
    assert store.end(claim, "gave_up") and store.purge(later) == 1
    assert store.get(SLOT) is None


def test_a_server_uses_its_own_clock(opens: Opens) -> None:
    store = opens(None)
    assert abs(store.now() - dt.datetime.now(dt.timezone.utc)) < dt.timedelta(minutes=5)


def test_several_slots_are_asked_for_at_once(store: SlotStore) -> None:
    later, other = Slot("orders", NOON + dt.timedelta(minutes=1)), Slot("items", NOON)
    store.open([SLOT, later])
    store.open([other], "skipped", "missed")
    found = store.get_many([SLOT, other, Slot("items", later.fire_time)])
    assert {slot: record.status for slot, record in found.items()} == {SLOT: "waiting", other: "skipped"}
    assert store.get_many([]) == {}


def test_what_did_not_succeed_since_a_moment_is_listed(store: SlotStore) -> None:
    minutes = [Slot("orders", NOON + dt.timedelta(minutes=number)) for number in range(5)]
    other = Slot("items", minutes[3].fire_time)
    store.open(minutes[1:3], "skipped", "upstream")
    store.open([minutes[0], other], "gave_up", "broken")
    store.open([minutes[3]], "succeeded")
    store.open([minutes[4]])
    found = store.unsuccessful(["orders", "items"], minutes[1].fire_time)
    assert [each.slot for each in found] == [minutes[1], minutes[2], other]
    assert [each.slot for each in store.unsuccessful(["orders"], NOON)] == minutes[:3]
    assert store.unsuccessful(["unknown"], NOON) == []


@pytest.mark.parametrize("server", ["pg_database", "mariadb_database"])
def test_a_kept_connection_serves_many_calls_and_a_broken_one_is_replaced(
    server: str, request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue(server)
    asks, ends = (
        ("SELECT pg_backend_pid()", "SELECT pg_terminate_backend(%s)")
        if server == "pg_database"
        else ("SELECT CONNECTION_ID()", "KILL %s")
    )
    with open_slots(url, env={}, keep_open=True) as kept, open_slots(url, env={}) as other:
        assert isinstance(kept, SqlSlotStore) and isinstance(other, SqlSlotStore)

        def session() -> int:
            with kept._reader.connect() as connection:
                return int(connection.exec_driver_sql(asks).scalar_one())

        first = session()
        kept.open([SLOT])
        assert session() == first
        with other._reader.connect() as connection:
            connection.exec_driver_sql(ends, (first,))
        assert [record.slot for record in kept.unfinished()] == [SLOT]
        assert session() != first


def test_many_slots_are_claimed_and_ended_at_once(store: SlotStore, clock: Clock) -> None:
    wanted = [Slot(f"p{number}", NOON) for number in range(5)] + [Slot("p0", NOON - dt.timedelta(hours=1))]
    store.open(wanted)
    seen = [store.get_many(wanted)[slot] for slot in wanted]
    assert store.claim(seen[1], "another", 30) is not None
    claims = store.claim_all(seen, "me", 30)
    assert {claim.slot for claim in claims} == {*wanted} - {wanted[1]}
    assert {(claim.holder, claim.fence, claim.failures, claim.deaths) for claim in claims} == {
        ("me", 1, 0, 0)
    }
    assert store.claim_all(seen, "you", 30) == []
    clock.pass_(31)
    late = store.get(wanted[2])
    assert late is not None
    assert store.claim(late, "you", 30) is not None  # one claim is lost in between
    ended = store.end_all({claim: f"because of {claim.slot.pipeline}" for claim in claims}, "skipped")
    assert ended == {*wanted} - {wanted[1], wanted[2]}
    found = store.get_many(wanted)
    assert {slot for slot, record in found.items() if record.status == "skipped"} == ended
    assert {found[slot].reason for slot in ended} == {f"because of {slot.pipeline}" for slot in ended}
    assert {record.slot for record in store.unfinished()} == {wanted[1], wanted[2]}
    assert store.claim_all([], "me", 30) == [] and store.end_all({}, "skipped") == set()


@pytest.mark.parametrize("opens", ["s3"], indirect=True)
def test_the_marks_of_many_slots_in_a_bucket_are_removed_in_one_request(
    store: SlotStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(store, ObjectSlotStore)
    wanted = [Slot(f"p{number}", NOON) for number in range(30)]
    store.open(wanted)
    claims = store.claim_all(store.unfinished(), "me", 30)
    removed: list[int] = []
    remove = store._store.remove
    monkeypatch.setattr(store._store, "remove", lambda keys: (removed.append(len(keys)), remove(keys)))
    assert len(store.end_all(dict.fromkeys(claims, "why"), "skipped")) == 30
    assert removed == [30]


def test_a_slot_that_waits_is_hastened_as_it_was_seen(store: SlotStore, clock: Clock) -> None:
    store.open([SLOT])
    claim = claimed(store)
    assert store.retry_later(claim, 7200, "it failed")
    seen = store.get(SLOT)
    assert seen is not None and not seen.is_due(clock())
    assert store.end_wait(seen)
    now = store.get(SLOT)
    assert now is not None and now.is_due(clock()) and (now.failures, now.reason) == (1, "it failed")
    assert claimed(store) is not None
    assert not store.end_wait(seen)
    assert not store.end_wait(replace(seen, slot=Slot("unknown", NOON)))
