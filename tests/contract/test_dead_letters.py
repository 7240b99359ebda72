"""What every store of dead letters does; each test runs on each store."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from ematix_flow.backends.state_stores.dead_letters import open_dead_letters
from ematix_flow.errors import FlowError, UsageError
from ematix_flow.state.dead_letters.base import DeadLetter, DeadLetterStore, LetterSelection
from ematix_flow.state.dead_letters.sql import SqlDeadLetterStore
from tests.contract.chosen import shared_out

NOON = dt.datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=dt.timezone.utc)
ALL = LetterSelection(all=True)

STORES = [
    "sqlite",
    pytest.param("postgres", marks=pytest.mark.postgres),
    *shared_out("duckdb", "mariadb", "mysql"),
]
Opened = Callable[..., DeadLetterStore]


@pytest.fixture(params=STORES)
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opened]:
    """Opens the store of this test, any number of times; MariaDB's table is the test's own."""
    url, table = f"{request.param}://{tmp_path}/letters.db", None
    if request.param == "postgres":
        url = request.getfixturevalue("pg_database")
    if request.param in ("mariadb", "mysql"):
        url = request.getfixturevalue(f"{request.param}_database")
        table = f"{url.rpartition('/')[2].partition('?')[0]}.letters"
    opened: list[DeadLetterStore] = []

    def opening(**given: Any) -> DeadLetterStore:
        store = open_dead_letters(url, env={}, **{"table": table, **given})
        opened.append(store)
        return store

    yield opening
    for store in opened:
        store.close()


@pytest.fixture
def store(open_store: Opened) -> DeadLetterStore:
    return open_store()


def a_letter(number: int = 0, pipeline: str = "orders", **given: Any) -> DeadLetter:
    values: dict[str, Any] = {
        "stage": "decode",
        "reason": "not JSON",
        "payload": f"message {number}".encode(),
        "source": "orders-topic",
        "partition": "0",
        "position": str(number),
        "failed_at": NOON + dt.timedelta(seconds=number),
    }
    return DeadLetter.create(pipeline, **{**values, **given})


def letters(count: int, pipeline: str = "orders", **given: Any) -> list[DeadLetter]:
    return [a_letter(number, pipeline, **given) for number in range(count)]


def positions(found: Any) -> list[str | None]:
    return [letter.position for letter in found]


# ------------------------------------------------------------------ keeping


def test_a_letter_comes_back_as_it_was_kept(store: DeadLetterStore) -> None:
    kept = a_letter(
        7,
        stage="write",
        payload=b"\x00\xff\x80'; DROP TABLE dead_letters; --",
        payload_format="avro",
        target="warehouse:shop.orders",
        batch="q1:9",
        event_ts=NOON.astimezone(dt.timezone(dt.timedelta(hours=9))),
        key=b"\x00key",
        headers='{"trace": "a\\u0000b"}',
    )
    assert store.add([kept]) == 1
    assert store.get("orders", kept.id) == kept
    assert store.get(None, kept.id[:8]) == kept


@pytest.mark.parametrize(
    "hostile",
    [
        "nul \x00 inside",
        "\U0001f600 漢字 é",
        "'; DROP TABLE dead_letters; --",
        "100% _x_ \\ {y} :z",
        "\udce9",
    ],
)
def test_hostile_texts_are_kept_and_found_again(store: DeadLetterStore, hostile: str) -> None:
    kept = a_letter(
        pipeline=f"p {hostile}", reason=hostile, source=hostile, position=hostile, headers=hostile
    )
    store.add([kept, a_letter(pipeline="other")])
    (found,) = store.list(f"p {hostile}")
    assert (found.reason, found.source, found.position) == (kept.reason, kept.source, kept.position)
    assert store.get(kept.pipeline, kept.id) == kept
    taken = store.lease(f"p {hostile}", LetterSelection(reason=hostile))
    assert taken.letters == (kept,)


def test_a_mebibyte_of_any_bytes_is_kept_whole(store: DeadLetterStore) -> None:
    payload = bytes(range(256)) * 4096
    store.add([a_letter(payload=payload)])
    (listed,) = store.list("orders")
    assert (listed.payload, listed.payload_size) == (b"", len(payload))
    assert store.get("orders", listed.id).payload == payload


def test_an_empty_payload_is_kept(store: DeadLetterStore) -> None:
    kept = a_letter(payload=b"", key=b"")
    store.add([kept])
    assert store.get("orders", kept.id) == kept


def test_a_payload_that_is_too_long_is_cut_parked_and_never_replayed(store: DeadLetterStore) -> None:
    store.longest_payload = 10
    store.add([a_letter(payload=b"0123456789abc")])
    (listed,) = store.list("orders")
    kept = store.get("orders", listed.id)
    assert (kept.payload, kept.payload_size, kept.whole, kept.status) == (b"0123456789", 13, False, "parked")
    assert "kept are 10 of 13 bytes" in kept.reason
    assert store.lease("orders", LetterSelection(ids=(kept.id,))).letters == ()


def test_pipelines_whose_names_nearly_agree_are_kept_apart(store: DeadLetterStore) -> None:
    names = ["orders", "Orders", "orders ", "órders"]
    for name in names:
        store.add([a_letter(pipeline=name)])
    assert [[letter.pipeline for letter in store.list(name)] for name in names] == [[n] for n in names]


def test_the_same_letters_again_add_nothing(store: DeadLetterStore, open_store: Opened) -> None:
    assert store.add(letters(3)) == 3
    assert store.add(letters(4)) == 1
    assert open_store().add([*letters(4), *letters(4)]) == 0
    assert positions(store.list("orders")) == ["0", "1", "2", "3"]


def test_more_letters_than_fit_into_one_statement_are_kept_in_order(store: DeadLetterStore) -> None:
    assert store.add(letters(1203)) == 1203
    assert store.add([]) == 0
    found = store.list("orders", limit=2000)
    assert positions(found) == [str(number) for number in range(1203)]
    assert positions(store.list("orders", limit=2, offset=1201)) == ["1201", "1202"]
    assert store.list("orders", limit=0) == []


def test_a_letter_that_was_replayed_is_pending_again_when_another_batch_fails_on_it(
    store: DeadLetterStore,
) -> None:
    store.add([a_letter(batch="q1:1")])
    lease = store.lease("orders", ALL)
    store.mark_replayed(lease, [lease.letters[0].id])
    assert store.add([a_letter(batch="q1:1")]) == 0
    assert store.list("orders", status="pending") == []
    assert store.add([a_letter(batch="q2:1", reason="still not JSON")]) == 1
    (again,) = store.list("orders", status="pending")
    assert (again.reason, again.attempt, again.batch) == ("still not JSON", 1, "q2:1")


def test_the_letters_of_a_batch_are_found_in_any_status(store: DeadLetterStore) -> None:
    store.add([*letters(4, stage="expectation", batch="q1:1"), a_letter(5, batch="q1:1")])
    store.add([a_letter(6, "returns", stage="expectation", batch="q1:1")])
    lease = store.lease("orders", LetterSelection(first=1))
    store.mark_replayed(lease, [lease.letters[0].id])
    store.park("orders", LetterSelection(ids=(a_letter(1, stage="expectation").id,)))
    found = store.of_batch("orders", "expectation", "q1:1")
    assert sorted((each.position, each.status, each.payload) for each in found) == [
        ("0", "replayed", b""),
        ("1", "parked", b""),
        ("2", "pending", b""),
        ("3", "pending", b""),
    ]
    assert store.add([a_letter(2, stage="expectation", batch="q2:1")]) == 0  # read again
    assert positions(store.of_batch("orders", "expectation", "q2:1")) == ["2"]
    assert len(store.of_batch("orders", "expectation", "q1:1")) == 3
    assert store.of_batch("orders", "expectation", "q1") == []


def test_new_are_the_letters_that_would_be_added(store: DeadLetterStore) -> None:
    store.add(letters(3, batch="q1:1"))
    lease = store.lease("orders", LetterSelection(first=1))
    store.mark_replayed(lease, [lease.letters[0].id])
    assert positions(store.select_new([*letters(5, batch="q1:1"), a_letter(4)])) == ["3", "4"]
    assert positions(store.select_new(letters(4, batch="q2:1"))) == ["0", "3"]
    assert positions(store.select_new(letters(1203))) == ["0", *[str(number) for number in range(3, 1203)]]
    assert store.select_new([]) == []
    assert len(store.list("orders")) == 3


# ------------------------------------------------------------------ looking


def test_letters_are_listed_oldest_first_by_pipeline_status_and_stage(store: DeadLetterStore) -> None:
    store.add([a_letter(1), a_letter(2, stage="transform"), a_letter(3, "returns"), a_letter(4)])
    store.park("orders", LetterSelection(ids=(a_letter(4).id,)))
    assert positions(store.list()) == ["1", "2", "3", "4"]
    assert positions(store.list("orders")) == ["1", "2", "4"]
    assert positions(store.list("orders", stage="decode")) == ["1", "4"]
    assert positions(store.list("orders", status="parked")) == ["4"]
    assert positions(store.list(status="pending", stage="transform")) == ["2"]
    assert store.list("unknown") == []


def test_pages_show_every_letter_once_oldest_first(store: DeadLetterStore) -> None:
    store.add(letters(7))
    store.add([a_letter(9, "other"), a_letter(8, reason="Too LONG 100%")])
    store.park("orders", LetterSelection(ids=(a_letter(3).id,)))

    def walk(limit: int, **wanted: Any) -> list[str | None]:
        found: list[DeadLetter] = []
        after: str | None = None
        while True:
            page = store.page(after=after, limit=limit, **wanted)
            found += page.letters
            after = page.next
            if after is None:
                return positions(found)

    for limit in (1, 2, 7, 8, 9):
        assert walk(limit, pipeline="orders") == ["0", "1", "2", "3", "4", "5", "6", "8"]
    assert walk(2, status="parked") == ["3"]
    assert walk(2, reason="too long 100%") == ["8"]
    assert walk(3, stage="write") == []
    with pytest.raises(UsageError, match="is not a place"):
        store.page(after="'; --")


def test_letters_are_counted_by_pipeline_stage_and_status(store: DeadLetterStore) -> None:
    store.add([a_letter(1), a_letter(2), a_letter(3, stage="write"), a_letter(4, "returns")])
    store.park("orders", LetterSelection(first=1))
    counted = [(c.pipeline, c.stage, c.status, c.letters) for c in store.counts()]
    assert counted == [
        ("orders", "decode", "parked", 1),
        ("orders", "decode", "pending", 1),
        ("orders", "write", "pending", 1),
        ("returns", "decode", "pending", 1),
    ]
    (only,) = store.counts("returns")
    assert only.oldest == only.newest == NOON + dt.timedelta(seconds=4)
    assert store.counts("unknown") == []


def test_the_beginning_of_an_id_is_enough_while_only_one_letter_has_it(store: DeadLetterStore) -> None:
    for id in ("abc1", "abc2", "abd", "abc"):
        store.add([replace(a_letter(), id=id)])
    assert store.get("orders", "abd").id == "abd"
    assert store.get("orders", "abc").id == "abc"
    with pytest.raises(UsageError, match="several dead letters begin with 'ab'"):
        store.get("orders", "ab")
    for unknown in ("x", "", "%", "a_d", "abd\x00", "é"):
        with pytest.raises(UsageError, match="no dead letter"):
            store.get("orders", unknown)
    with pytest.raises(UsageError, match="no dead letter"):
        store.get("returns", "abd")


# ------------------------------------------------------------------ replaying


def test_letters_are_taken_oldest_first_with_their_payloads(store: DeadLetterStore) -> None:
    store.add(letters(5))
    taken = store.lease("orders", LetterSelection(first=2))
    assert taken.letters == tuple(letters(2))
    assert positions(store.lease("orders", ALL, limit=2).letters) == ["2", "3"]
    assert store.lease("returns", ALL).letters == ()


def test_a_letter_is_taken_by_one_replay_at_a_time(store: DeadLetterStore, open_store: Opened) -> None:
    store.add(letters(3))
    first = store.lease("orders", ALL)
    other = open_store()
    assert len(first.letters) == 3
    assert other.lease("orders", ALL).letters == ()
    assert store.release(first, [first.letters[1].id]) == 1
    second = other.lease("orders", ALL)
    assert positions(second.letters) == ["1"]
    assert store.mark_replayed(first, [letter.id for letter in first.letters]) == 2
    assert [c.letters for c in store.counts("orders") if c.status == "replayed"] == [2]
    assert other.release(second) == 1


def test_a_lease_ends_by_itself_and_then_proves_nothing(store: DeadLetterStore) -> None:
    store.add(letters(2))
    dead = store.lease("orders", ALL, lease_seconds=0)
    taken = store.lease("orders", ALL, lease_seconds=60)
    assert len(taken.letters) == 2
    first, second = (letter.id for letter in taken.letters)
    assert store.mark_replayed(dead, [first]) == 0
    assert store.mark_failed(dead, second, "x") is None
    assert store.release(dead) == 0
    assert store.renew(dead).letters == ()
    assert store.mark_replayed(taken, [first, second]) == 2


def test_a_lease_can_be_renewed(store: DeadLetterStore) -> None:
    store.add(letters(2))
    taken = store.lease("orders", ALL, lease_seconds=0)
    renewed = store.renew(taken, 60)
    assert renewed.letters == taken.letters
    assert renewed.until > taken.until
    assert store.lease("orders", ALL).letters == ()


def test_a_letter_that_fails_again_is_parked_after_its_attempts(store: DeadLetterStore) -> None:
    store.add(letters(1))
    first = store.lease("orders", ALL)
    assert store.mark_failed(first, first.letters[0].id, "no such column, password=hunter22") == "pending"
    again = store.list("orders")[0]
    assert (again.attempt, again.reason) == (2, "no such column, password=***")
    assert again.failed_at > NOON
    second = store.lease("orders", ALL)
    assert store.mark_failed(second, second.letters[0].id, "again") == "parked"
    assert store.lease("orders", ALL).letters == ()


def test_what_failed_during_a_replay_is_not_taken_again_by_it(store: DeadLetterStore) -> None:
    store.add(letters(2))
    began = dt.datetime.now(dt.timezone.utc)
    lease = store.lease("orders", ALL, limit=1, before=began)
    store.mark_failed(lease, lease.letters[0].id, "again")
    assert positions(store.lease("orders", ALL, before=began).letters) == ["1"]
    assert positions(store.lease("orders", ALL).letters) == ["0"]


def test_a_parked_letter_is_taken_when_it_is_named(store: DeadLetterStore) -> None:
    store.add(letters(3))
    assert store.park("orders", LetterSelection(first=2)) == 2
    assert positions(store.lease("orders", ALL).letters) == ["2"]
    assert positions(store.lease("orders", LetterSelection(ids=(a_letter(0).id,))).letters) == ["0"]
    assert positions(store.lease("orders", LetterSelection(status="parked")).letters) == ["1"]
    assert store.lease("orders", LetterSelection(status="replayed")).letters == ()


def test_letters_are_chosen_by_stage_and_by_part_of_their_reason(store: DeadLetterStore) -> None:
    store.add(
        [
            a_letter(1, reason="Timeout after 5 s"),
            a_letter(2, reason="100% wrong"),
            a_letter(3, stage="write", reason="another TIMEOUT"),
            a_letter(4, reason="1000 wrong"),
        ]
    )
    assert positions(store.lease("orders", LetterSelection(reason="timeout", stage="write")).letters) == ["3"]
    assert positions(store.lease("orders", LetterSelection(reason="0% w")).letters) == ["2"]
    assert positions(store.lease("orders", LetterSelection(reason="timeout")).letters) == ["1"]


def test_a_lease_holds_no_more_payloads_than_fit_into_memory(store: DeadLetterStore) -> None:
    store.add(letters(12, payload=b"x" * 1024 * 1024))
    first = store.lease("orders", ALL)
    second = store.lease("orders", ALL)
    assert 1 <= len(first.letters) < 12
    assert len(first.letters) + len(second.letters) == 12


def test_two_replays_at_once_share_the_letters_and_take_none_twice(open_store: Opened) -> None:
    open_store().add(letters(30))
    taken: list[str] = []
    failed: list[BaseException] = []
    start = threading.Barrier(3)

    def replay(store: DeadLetterStore) -> None:
        try:
            start.wait()
            while (lease := store.lease("orders", ALL, limit=5)).letters:
                taken.extend(letter.id for letter in lease.letters)
                store.mark_replayed(lease, [letter.id for letter in lease.letters])
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=replay, args=(open_store(),)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert len(taken) == len(set(taken))
    rest = open_store().lease("orders", ALL).letters  # one that was beaten too often gives up early
    assert len(taken) + len(rest) == 30


def test_several_who_add_the_same_letters_at_once_keep_each_once(open_store: Opened) -> None:
    added: list[int] = []
    failed: list[BaseException] = []
    start = threading.Barrier(3)

    def add() -> None:
        try:
            start.wait()
            with open_store() as store:  # all make the table, too
                added.append(store.add(letters(40)))
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=add) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert sum(added) == 40
    assert len(open_store().list("orders", limit=200)) == 40


# ------------------------------------------------------------------ replays that died


def test_letters_of_a_replay_that_died_are_taken_together_and_by_no_other_replay(
    store: DeadLetterStore, open_store: Opened
) -> None:
    store.add(letters(6))
    died = store.lease("orders", ALL, limit=3, lease_seconds=60)
    first, _, third = (letter.id for letter in died.letters)
    assert store.mark_loading(died, [first, third], "dlq:a:0") == 2
    assert store.mark_loading(died, [third], "dlq:a:0 dlq:a:1") == 1
    later = store.lease("orders", ALL, limit=1, lease_seconds=60)
    assert store.mark_loading(later, [later.letters[0].id], "dlq:b:0") == 1
    assert store.lease_interrupted("orders").letters == ()  # both are alive
    assert (store.release(died), store.release(later)) == (3, 1)
    other = open_store()
    assert positions(other.lease("orders", ALL).letters) == ["1", "4", "5"]
    assert other.lease("orders", LetterSelection(ids=(first,))).letters == ()
    assert other.lease_interrupted("returns").letters == ()
    found = other.lease_interrupted("orders")
    assert [(each.id, each.loading) for each in found.letters] == [
        (first, "dlq:a:0"),
        (third, "dlq:a:0 dlq:a:1"),
    ]
    assert positions(store.lease_interrupted("orders").letters) == ["3"]
    assert store.lease_interrupted("orders").letters == ()
    assert other.mark_replayed(found, [first]) == 1
    assert other.mark_failed(found, third, "again") == "pending"
    assert other.lease_interrupted("orders").letters == ()
    assert [each.loading for each in (store.get("orders", first), store.get("orders", third))] == [None, None]


def test_letters_that_no_target_has_are_as_before(store: DeadLetterStore) -> None:
    store.add(letters(2))
    died = store.lease("orders", ALL)
    ids = [letter.id for letter in died.letters]
    store.mark_loading(died, ids, "dlq:a:0")
    assert store.mark_loading(died, ids, None) == 2
    assert store.release(died) == 2
    assert store.lease_interrupted("orders").letters == ()
    assert store.lease("orders", ALL).letters == tuple(letters(2))
    assert store.mark_loading(died, ids, "dlq:a:0") == 0


def test_the_targets_that_have_a_letter_stay_recorded(store: DeadLetterStore) -> None:
    store.add(letters(2))
    lease = store.lease("orders", ALL)
    first, second = (letter.id for letter in lease.letters)
    assert store.mark_loading(lease, [first], "dlq:b:0", '["a"]') == 1
    assert store.mark_loading(lease, [first], None) == 1
    store.mark_failed(lease, second, "again", '["a", "b"]')
    store.release(lease)
    again = store.lease("orders", ALL)
    assert {each.id: each.targets_with_it for each in again.letters} == {first: ("a",), second: ("a", "b")}
    store.mark_failed(again, second, "again")
    assert store.get("orders", second).targets_with_it == ("a", "b")


def test_a_replay_sees_until_when_another_one_may_be_loading_letters(store: DeadLetterStore) -> None:
    store.add([*letters(3), a_letter(1, "returns")])
    first = store.lease("orders", ALL, limit=1, lease_seconds=60)
    second = store.lease("orders", ALL, limit=1, lease_seconds=60)
    elsewhere = store.lease("returns", ALL)
    store.mark_loading(elsewhere, [elsewhere.letters[0].id], "dlq:c:0")
    store.mark_loading(first, [first.letters[0].id], "dlq:a:0")
    assert store.loading_of_others("orders", first) is None
    assert store.loading_of_others("orders", second) == first.until
    store.release(first)
    until = store.loading_of_others("orders", second)
    assert until is not None and until < first.until
    store.mark_replayed(store.lease_interrupted("orders"), [first.letters[0].id])
    assert store.loading_of_others("orders", second) is None


def test_a_store_of_the_first_version_is_upgraded(open_store: Opened) -> None:
    old = open_store()
    assert isinstance(old, SqlDeadLetterStore)
    old.add(letters(1))
    with old._transaction() as connection:
        name = connection.dialect.identifier_preparer.format_table(old._letters)
        for column in ("loading", "loaded_in"):
            connection.exec_driver_sql(f"ALTER TABLE {name} DROP COLUMN {column}")
        connection.execute(sa.update(old._tables.version).values(version=1))
    old.close()
    upgraded = open_store()
    assert upgraded.lease("orders", ALL).letters == tuple(letters(1))
    open_store().close()


# ------------------------------------------------------------------ tidying


def test_chosen_letters_are_purged_and_nothing_else(store: DeadLetterStore) -> None:
    store.add([*letters(700), a_letter(1, "returns"), a_letter(2, stage="write")])
    assert store.purge("orders", LetterSelection(first=600)) == 600
    assert store.purge("orders", LetterSelection(stage="write")) == 1
    assert store.purge("orders", LetterSelection(ids=(a_letter(650).id, "unknown"))) == 1
    assert store.purge("orders", ALL) == 99
    assert store.purge("orders", ALL) == 0
    assert positions(store.list()) == ["1"]


def test_letters_that_are_being_replayed_are_neither_parked_nor_purged(store: DeadLetterStore) -> None:
    store.add(letters(3))
    lease = store.lease("orders", LetterSelection(first=1))
    assert store.park("orders", ALL) == 2
    assert store.purge("orders", ALL) == 2
    assert store.mark_replayed(lease, [lease.letters[0].id]) == 1


def test_a_purged_letter_can_come_again(store: DeadLetterStore) -> None:
    store.add(letters(1))
    store.purge("orders", ALL)
    assert store.add(letters(1)) == 1


def test_a_second_opening_sees_the_same_letters_under_the_same_name_only(
    store: DeadLetterStore, open_store: Opened
) -> None:
    store.add(letters(1))
    store.close()
    assert positions(open_store().list()) == ["0"]


def test_a_table_that_nobody_can_be_called_is_refused(open_store: Opened) -> None:
    for name in ("", ".x", "a.", "x\x00y"):
        with pytest.raises(FlowError):
            open_store(table=name)
