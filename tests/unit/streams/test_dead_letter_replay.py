"""Replaying dead letters: what is noted of each, and what a failure in the middle leaves."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from ematix_flow.engine.streams.batch_report import RejectedMessage
from ematix_flow.errors import CannotConnect
from ematix_flow.spec.streams import StreamSourceSpec, StreamSpec
from ematix_flow.state.dead_letters.base import DeadLetter, DeadLetterStore, LetterLease, LetterSelection
from ematix_flow.state.dead_letters.sql import open_dead_letter_file
from ematix_flow.streams.dead_letter_replay import RunLetters, replay_letters
from ematix_flow.streams.dead_letters import StreamDeadLetters

ALL = LetterSelection(all=True)
NOON = dt.datetime(2026, 3, 1, 12, 0, tzinfo=dt.timezone.utc)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[DeadLetterStore]:
    with open_dead_letter_file(tmp_path / "letters.db") as opened:
        yield opened


def fill(store: DeadLetterStore, count: int) -> None:
    store.add(
        [
            DeadLetter.create("orders", "decode", "bad", payload=b"x", position=str(n), failed_at=NOON)
            for n in range(count)
        ]
    )


def running(fails: Callable[[str], str | None], seen: list[list[str]]) -> RunLetters:
    def run(letters: Sequence[DeadLetter], _: object) -> Mapping[str, str | None]:
        seen.append([str(letter.position) for letter in letters])
        return {letter.id: fails(str(letter.position)) for letter in letters}

    return run


def statuses(store: DeadLetterStore) -> dict[str, int]:
    return {count.status: count.letters for count in store.counts("orders")}


def test_letters_are_run_in_portions_oldest_first_and_noted_as_replayed(store: DeadLetterStore) -> None:
    fill(store, 5)
    seen: list[list[str]] = []
    result = replay_letters("orders", store, ALL, running(lambda _: None, seen), chunk=2)
    assert seen == [["0", "1"], ["2", "3"], ["4"]]
    assert (result.taken, result.replayed, result.failed) == (5, 5, 0)
    assert statuses(store) == {"replayed": 5}


def test_what_fails_again_is_tried_once_a_replay_and_parked_in_the_end(store: DeadLetterStore) -> None:
    fill(store, 3)
    seen: list[list[str]] = []
    odd = running(lambda position: "still bad" if position == "1" else None, seen)
    first = replay_letters("orders", store, ALL, odd, chunk=1)
    assert (first.replayed, first.failed, first.parked) == (2, 1, 0)
    assert list(first.failures.values()) == ["still bad"]
    second = replay_letters("orders", store, ALL, odd)
    assert (second.taken, second.failed, second.parked) == (1, 1, 1)
    assert replay_letters("orders", store, ALL, odd).taken == 0
    assert seen == [["0"], ["1"], ["2"], ["1"]]


def test_only_the_first_n_are_run_over_all_portions(store: DeadLetterStore) -> None:
    fill(store, 6)
    seen: list[list[str]] = []
    replay_letters("orders", store, LetterSelection(first=3), running(lambda _: None, seen), chunk=2)
    assert seen == [["0", "1"], ["2"]]


def test_an_error_ends_the_replay_and_leaves_the_portion_as_it_was(store: DeadLetterStore) -> None:
    fill(store, 3)

    def away(letters: Sequence[DeadLetter], _: object) -> Mapping[str, str | None]:
        raise CannotConnect("the warehouse is away")

    with pytest.raises(CannotConnect):
        replay_letters("orders", store, ALL, away)
    assert [letter.attempt for letter in store.list("orders", status="pending")] == [1, 1, 1]
    assert replay_letters("orders", store, ALL, running(lambda _: None, [])).replayed == 3


def test_what_was_not_tried_is_released_and_ends_the_replay(store: DeadLetterStore) -> None:
    fill(store, 4)

    def half(letters: Sequence[DeadLetter], _: object) -> Mapping[str, str | None]:
        return {letters[0].id: None}

    result = replay_letters("orders", store, ALL, half, chunk=3)
    assert (result.taken, result.replayed, result.released) == (3, 1, 2)
    assert statuses(store) == {"pending": 3, "replayed": 1}


def test_a_stop_ends_the_replay_between_two_portions(store: DeadLetterStore) -> None:
    fill(store, 4)
    seen: list[list[str]] = []
    run = running(lambda _: None, seen)
    replay_letters("orders", store, ALL, run, chunk=1, stopping=lambda: len(seen) == 2)
    assert seen == [["0"], ["1"]]


def test_a_lease_is_renewed_while_a_portion_runs(
    store: DeadLetterStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(store, 1)
    renewed = threading.Event()
    real = store.renew

    def renew(lease: LetterLease, lease_seconds: float = 1) -> LetterLease:
        renewed.set()
        return real(lease, lease_seconds)

    monkeypatch.setattr(store, "renew", renew)

    def slow(letters: Sequence[DeadLetter], _: object) -> Mapping[str, str | None]:
        assert renewed.wait(60)
        return {letter.id: None for letter in letters}

    assert replay_letters("orders", store, ALL, slow, lease_seconds=0.3).taken == 1


def test_a_lease_that_ended_meanwhile_is_reported(store: DeadLetterStore) -> None:
    fill(store, 2)

    def stolen(letters: Sequence[DeadLetter], _: object) -> Mapping[str, str | None]:
        store.lease("orders", ALL, lease_seconds=60)
        return {letters[0].id: None, letters[1].id: "bad"}

    result = replay_letters("orders", store, ALL, stolen, lease_seconds=-1)
    assert (result.taken, result.lost, result.replayed, result.failed) == (2, 2, 0, 0)


# ------------------------------------------------------------------ from a stream


def test_what_a_stream_cannot_load_is_kept_with_its_position(store: DeadLetterStore) -> None:
    letters = StreamDeadLetters(StreamSpec("orders", (StreamSourceSpec("mq", "events"),), ()), store, "avro")
    bad = RejectedMessage(
        "decode",
        "no schema 9",
        {
            "value": bytearray(b"\x00abc"),
            "key": None,
            "topic": "events",
            "partition": "2",
            "position": "41",
            "timestamp": dt.datetime(2026, 3, 1, 12),
            "headers": '{"a": "b"}',
        },
    )
    tombstone = RejectedMessage("write", "too long", {"value": None, "topic": "events", "position": "42"})
    for _ in range(2):
        letters.add([bad, tombstone], "stream:q:1")
    listed = store.list("orders")
    assert [letter.stage for letter in listed] == ["decode", "write"]
    kept = store.get("orders", listed[0].id)
    assert (kept.payload, kept.payload_format) == (b"\x00abc", "avro")
    assert (kept.source, kept.partition, kept.position) == ("events", "2", "41")
    assert (kept.event_ts, kept.headers) == (NOON, '{"a": "b"}')
    assert kept.batch == "stream:q:1"
    assert store.get("orders", listed[1].id).payload == b""
