"""One contract over every store of actions and holds: requested once, claimed by one, ended once."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from ematix_flow.backends.state_stores.run_logs import open_actions, open_run_log, sql_tables
from ematix_flow.backends.stores.object_urls import open_object_store
from ematix_flow.errors import UsageError
from ematix_flow.fault_points import InjectedCrash
from ematix_flow.state.actions.base import ActionStore
from ematix_flow.state.actions.memory import MemoryActionStore
from ematix_flow.state.actions.objects import ObjectActionStore
from ematix_flow.state.actions.records import ActionRecord, Hold
from ematix_flow.state.actions.sql import SqlActionStore
from ematix_flow.state.sql.sqlite import sqlite_engine
from tests.contract.chosen import shared_out
from tests.contract.object_stores import OBJECTS, object_url
from tests.contract.test_slots import NOON, Clock, server_engine

Opens = Callable[[Callable[[], dt.datetime] | None], ActionStore]

STORES = ["memory", "sqlite", "postgres", "s3", *shared_out("duckdb", "mariadb"), *shared_out("gcs", "azure")]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=STORES)
def opens(request: pytest.FixtureRequest, tmp_path: Path) -> Opens:
    """Opens the same store again, with the given clock or with its own."""
    kind = request.param
    if kind == "memory":
        shared = dict[object, MemoryActionStore]()
        return lambda clock: shared.setdefault(
            clock, MemoryActionStore(clock) if clock else MemoryActionStore()
        )
    if kind in OBJECTS:
        url = object_url(request, kind)
        return lambda clock: ObjectActionStore(open_object_store(url), clock)
    if kind == "duckdb":
        tables = sql_tables(f"duckdb://{tmp_path / 'actions.duckdb'}")
        return lambda clock: tables.open_store(partial(SqlActionStore, clock=clock))
    if kind == "sqlite":
        engine = sqlite_engine(tmp_path / "actions.db")
    elif kind == "postgres":
        engine = server_engine(request.getfixturevalue("pg_database"), "postgresql+psycopg")
    else:
        engine = server_engine(request.getfixturevalue("mariadb_database"), "mysql+pymysql")
    return lambda clock: SqlActionStore(engine, "here", clock)


@pytest.fixture
def store(opens: Opens, clock: Clock) -> ActionStore:
    return opens(clock)


def requested(store: ActionStore, subject: str = "orders", by: str = "ada") -> ActionRecord:
    return store.request("run", subject, {"with_downstream": True}, by=by, via="cli")[0]


def claimed(store: ActionStore, seen: ActionRecord, holder: str = "a") -> ActionRecord:
    found = store.claim(seen, holder, 30)
    assert found is not None
    return found


def test_an_action_is_kept_as_it_was_requested(store: ActionStore) -> None:
    made, is_new = store.request("run", "orders", {"with_downstream": True}, by="ada", via="web")
    assert is_new and store.get(made.action_id) == made == store.get(made.action_id[:8])
    assert (made.kind, made.subject, made.arguments) == ("run", "orders", {"with_downstream": True})
    assert (made.status, made.requested_by, made.via, made.requested_at) == ("waiting", "ada", "web", NOON)
    assert (made.fence, made.holder, made.outcome, made.run_ids, made.ended_at) == (0, None, None, (), None)
    assert ActionRecord.from_json(made.to_json()) == made


def test_the_same_request_is_one_action_until_it_has_ended(store: ActionStore) -> None:
    first = requested(store)
    again, is_new = store.request("run", "orders", {"with_downstream": True}, by="bob", via="cli")
    assert (again, is_new) == (first, False)
    assert store.request("run", "orders", {}, by="bob", via="cli")[1]
    assert store.request("run", "Orders", {"with_downstream": True}, by="bob", via="cli")[1]
    assert store.request("restart", "orders", {"with_downstream": True}, by="bob", via="cli")[1]
    working = claimed(store, first)
    assert not store.request("run", "orders", {"with_downstream": True}, by="bob", via="cli")[1]
    assert store.end(working, "done", "1 pipeline succeeded", ("r1", "r2"))
    new, is_new = store.request("run", "orders", {"with_downstream": True}, by="bob", via="cli")
    assert is_new and new.action_id != first.action_id
    ended = store.get(first.action_id)
    assert (ended.status, ended.outcome, ended.run_ids) == ("done", "1 pipeline succeeded", ("r1", "r2"))
    assert (ended.holder, ended.expires_at, ended.ended_at) == (None, None, NOON)


def test_many_that_request_the_same_at_once_make_one_action(opens: Opens, clock: Clock) -> None:
    opens(clock)
    together = threading.Barrier(4)

    def ask(number: int) -> tuple[ActionRecord, bool]:
        store = opens(clock)
        together.wait()
        return store.request("run", "orders", {}, by=f"person {number}", via="web")

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(ask, range(4)))
    assert len({record.action_id for record, _ in answers}) == 1
    assert sum(is_new for _, is_new in answers) == 1
    assert len(opens(clock).list()) == 1 == len(opens(clock).claimable())


def test_of_many_carriers_at_once_one_claims_and_of_its_processes_one_begins(
    opens: Opens, clock: Clock
) -> None:
    seen = requested(opens(clock))
    together = threading.Barrier(4)

    def take(number: int) -> ActionRecord | None:
        store = opens(clock)
        together.wait()
        return store.claim(seen, f"carrier {number}", 30)

    with ThreadPoolExecutor(4) as pool:
        found = [each for each in pool.map(take, range(4)) if each is not None]
    assert len(found) == 1 and (found[0].status, found[0].fence) == ("claimed", 1)

    def begin(number: int) -> bool:
        store = opens(clock)
        together.wait()
        return store.begin(found[0], 30, f"process {number}")

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(begin, range(4))) == 1
    assert (opens(clock).get(seen.action_id).holder or "").startswith("process ")


def test_a_claim_without_heartbeat_is_taken_over_and_the_old_one_can_change_nothing(
    store: ActionStore, clock: Clock
) -> None:
    first = claimed(store, requested(store), "a")
    assert store.claimable() == () and store.claim(store.get(first.action_id), "b", 30) is None
    assert store.begin(first, 30)
    clock.pass_(20)
    assert store.renew(first, 30)
    clock.pass_(20)
    assert store.claimable() == ()
    clock.pass_(11)
    (seen,) = store.claimable()
    second = claimed(store, seen, "b")
    assert (second.fence, second.holder, second.deaths, second.begun) == (2, "b", 1, False)
    assert not store.begin(first, 30) and not store.renew(first, 30)
    assert not store.end(first, "failed", "too late")
    assert store.end(second, "done", "in time") and not store.end(second, "failed", "again")
    assert store.get(first.action_id).outcome == "in time"


def test_a_claim_that_expires_before_its_process_begins_is_no_death(store: ActionStore, clock: Clock) -> None:
    claimed(store, requested(store))
    clock.pass_(31)
    (seen,) = store.claimable()
    assert claimed(store, seen, "b").deaths == 0


def test_an_action_that_is_handed_back_waits_again_and_no_death_counts(store: ActionStore) -> None:
    first = claimed(store, requested(store))
    assert store.begin(first, 30) and store.hand_back(first) and not store.hand_back(first)
    (seen,) = store.claimable()
    assert (seen.status, seen.begun, seen.holder, seen.expires_at) == ("waiting", False, None, None)
    second = claimed(store, seen, "b")
    assert (second.fence, second.deaths) == (2, 0) and not store.renew(first, 30)


def test_an_action_that_waits_is_kept_waiting_until_it_is_claimed(store: ActionStore, clock: Clock) -> None:
    seen = requested(store)
    clock.pass_(10)
    assert store.keep_waiting(seen, 60)
    (kept,) = store.claimable()
    assert kept == replace(seen, expires_at=clock() + dt.timedelta(seconds=60))
    clock.pass_(120)
    (kept,) = store.claimable()  # when it expires is for its carriers to decide
    first = claimed(store, kept)
    assert first.expires_at == clock() + dt.timedelta(seconds=30) and not store.keep_waiting(kept, 60)
    assert store.begin(first, 30) and store.hand_back(first)
    assert not store.keep_waiting(kept, 60) and store.get(kept.action_id).expires_at is None


def test_an_expired_claim_that_nobody_took_may_still_end(store: ActionStore, clock: Clock) -> None:
    late = claimed(store, requested(store))
    clock.pass_(31)
    assert store.end(late, "done", "late but alone")


def test_carriers_see_what_they_carry_out_oldest_first(store: ActionStore, clock: Clock) -> None:
    wanted = []
    for kind in ("run", "restart", "resume_from_watermark", "replay_letters"):
        wanted.append(store.request(kind, "x", {}, by="ada", via="web")[0])  # type: ignore[arg-type]  # a kind
        clock.pass_(1)
    stop = store.request("stop", "r1", {}, by="ada", via="web")[0]
    store.request("pause", "orders", {}, by="ada", via="web")
    assert list(store.claimable()) == wanted
    assert store.claim(stop, "a", 30) is None


def test_a_run_finds_the_request_to_stop_it_and_ends_it(store: ActionStore) -> None:
    assert store.stop_requested("r1") is None
    asked, is_new = store.request("stop", "r1", {"reason": "too slow"}, by="ada", via="cli")
    assert is_new and not store.request("stop", "r1", {}, by="bob", via="cli")[1]
    found = store.stop_requested("r1")
    assert found == asked and store.stop_requested("r2") is None
    assert store.end(asked, "done", "stopped", ("r1",))
    assert store.stop_requested("r1") is None


def test_actions_are_listed_newest_first_and_page_by_page(store: ActionStore, clock: Clock) -> None:
    made = []
    for number in range(6):
        made.append(requested(store, f"p{number}"))
        clock.pass_(number % 2)  # some at the same time
    cleared = store.request("clear", "p1", {}, by="ada", via="cli")[0]
    assert store.end(cleared, "refused", "no slot")
    made.append(store.get(cleared.action_id))
    newest = sorted(made, key=lambda each: (each.requested_at, each.action_id), reverse=True)
    assert list(store.list()) == newest
    pages, before = [], None
    while page := store.list(limit=2, before=before):
        pages += page
        before = page[-1].requested_at, page[-1].action_id
    assert pages == newest
    assert {each.kind for each in store.list(subject="p1")} == {"run", "clear"}
    assert [each.subject for each in store.list(kind="clear")] == ["p1"]
    assert len(store.list(unfinished=True)) == 6
    assert [each.status for each in store.list(subject="p1", kind="clear")] == ["refused"]


def test_an_unknown_id_is_an_error_that_says_where_to_look(store: ActionStore) -> None:
    for wrong in ("", "nothing"):
        with pytest.raises(UsageError, match="no action") as refused:
            store.get(wrong)
        assert refused.value.next_step == "flow actions list"


def test_a_hold_is_made_once_and_released_once(store: ActionStore, clock: Clock) -> None:
    assert store.hold("schedule", "orders", by="ada", reason="the warehouse moves")
    clock.pass_(5)
    assert not store.hold("schedule", "orders", by="bob")
    assert store.hold("run", "orders", by="bob") and store.hold("run", "Orders", by="bob")
    later = NOON + dt.timedelta(seconds=5)
    assert store.holds() == (
        Hold("run", "Orders", "bob", later),
        Hold("run", "orders", "bob", later),
        Hold("schedule", "orders", "ada", NOON, "the warehouse moves"),
    )
    found = store.find_hold("schedule", "orders")
    assert found is not None and Hold.from_json(found.to_json()) == found
    assert store.find_hold("schedule", "others") is None
    assert store.release("schedule", "orders") and not store.release("schedule", "orders")
    assert [hold.kind for hold in store.holds()] == ["run", "run"]


def test_a_hold_names_the_run_that_waits(store: ActionStore) -> None:
    store.mark_held("orders", "r1", "nowhere: nothing is paused")
    assert store.holds() == ()
    store.hold("run", "orders", by="ada")
    store.hold("schedule", "orders", by="ada")
    store.mark_held("orders", "r1", "before apply into warehouse.orders")
    held = store.find_hold("run", "orders")
    assert held is not None
    assert (held.held_run, held.held_at) == ("r1", "before apply into warehouse.orders")
    store.mark_released("orders", "another run")
    assert store.find_hold("run", "orders") == held
    store.mark_released("orders", "r1")
    assert [hold.held_run for hold in store.holds()] == [None, None]


def test_actions_that_ended_long_ago_are_deleted(store: ActionStore, clock: Clock) -> None:
    done = claimed(store, requested(store, "old"))
    store.end(done, "done", "long ago")
    waits = requested(store, "still waits")
    clock.pass_(100)
    recent = store.request("pause", "x", {}, by="ada", via="cli")[0]
    store.end(recent, "done", "x is paused")
    assert store.purge(NOON + dt.timedelta(seconds=50)) == 1
    assert {each.action_id for each in store.list()} == {waits.action_id, recent.action_id}
    assert requested(store, "old").action_id != done.action_id
    assert requested(store, "still waits") == waits


def test_secrets_are_masked_in_all_texts(store: ActionStore) -> None:
    url = "postgres://me:hunter2secret@host/db"
    made, _ = store.request("run", "orders", {"note": url}, by=url, via="cli")
    store.end(made, "failed", f"cannot reach {url}")
    store.hold("run", "orders", by="ada", reason=url)
    assert "hunter2secret" not in f"{store.get(made.action_id)} {store.holds()}"


def test_a_server_uses_its_own_clock(opens: Opens) -> None:
    store = opens(None)
    before = store.now()
    made = requested(store)
    assert before <= made.requested_at <= store.now() and made.requested_at.tzinfo is not None


@pytest.mark.parametrize("kind", OBJECTS)
def test_a_request_that_died_before_it_was_marked_is_completed_by_the_next(
    kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ObjectActionStore(open_object_store(object_url(request, kind)))
    with monkeypatch.context() as patched:
        patched.setattr(store._store, "mark", lambda key: None)  # as if it had died here
        made = requested(store)
    assert store.claimable() == ()
    assert requested(store).action_id == made.action_id
    assert [each.action_id for each in store.claimable()] == [made.action_id]


@pytest.mark.parametrize("kind", OBJECTS)
@pytest.mark.parametrize("point", ["create", "replace", "mark"])
def test_what_a_request_that_died_has_left_is_not_listed_and_is_deleted(
    kind: str, point: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    """It dies before it writes the action, before its key names the action, or before that is marked."""
    store = ObjectActionStore(open_object_store(object_url(request, kind)), clock)
    ended = claimed(store, requested(store))
    assert store.end(ended, "done", "once before")
    clock.pass_(10)

    def die(key: str, *_: object) -> bool:
        raise InjectedCrash(key)

    def die_when_open(key: str) -> None:
        if key.startswith("open-actions/"):
            raise InjectedCrash(key)
        marks(key)

    marks = store._store.mark
    with monkeypatch.context() as patched, pytest.raises(InjectedCrash):
        patched.setattr(store._store, point, die_when_open if point == "mark" else die)
        requested(store)
    assert [each.action_id for each in store.list()] == [ended.action_id] and store.claimable() == ()
    clock.pass_(10)
    if point == "mark":  # the next request completes it
        last = requested(store)
        assert store.claimable() == (last,) and store.list() == (last, store.get(ended.action_id))
        assert store.end(claimed(store, last), "done", "twice")
    store.purge(NOON + dt.timedelta(minutes=1))
    left = [key for prefix in ("action", "open-", "requests/") for key in store._store.names(prefix)]
    assert left == []


def test_a_log_that_is_only_read_gets_no_table_and_has_no_actions(tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}/run_log.db"
    with open_actions(url, env={}, read_only=True) as actions:
        assert actions.list() == () and actions.holds() == ()
    assert not (tmp_path / "run_log.db").exists()
    open_run_log(url, env={}, reading=True).close()
    with open_actions(f"{url}?create_tables=false", env={}) as actions:
        assert requested(actions).status == "waiting"
    with open_actions(url, env={}, read_only=True) as actions:
        assert len(actions.list()) == 1
    with open_actions("memory://one", env={}) as first, open_actions("memory://one", env={}) as second:
        requested(first)
        assert len(second.list()) == 1
