"""What a topic of dead letters says, message by message, without a broker."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ematix_flow.backends.kafka.dead_letter_records import (
    LetterChange,
    LetterView,
    change_headers,
    letter_headers,
    own_headers,
    parse_change,
    parse_letter,
)
from ematix_flow.state.dead_letters.base import DeadLetter

NOON = dt.datetime(2026, 3, 1, 12, 0, tzinfo=dt.timezone.utc)
LETTER = DeadLetter.create("orders", "decode", "bad", payload=b"x", position="1", failed_at=NOON)


def at(seconds: int) -> dt.datetime:
    return NOON + dt.timedelta(seconds=seconds)


def change(status: str, operation: str, seconds: int = 0, **given: Any) -> LetterChange:
    return LetterChange(LETTER.id, "orders", status, operation, at(seconds), **given)


def leased(operation: str, seconds: int = 0, lasts: int = 60) -> LetterChange:
    return change("leased", operation, seconds, until=at(seconds + lasts), from_statuses=("pending",))


def told(*changes: LetterChange) -> LetterView:
    """The view of a topic with one letter and these changes."""
    view = LetterView()
    view.read_message((0, 0), letter_headers(LETTER, "add", 1))
    for number, each in enumerate(changes, start=1):
        view.read_message((0, number), change_headers(each))
    return view


def entry(*changes: LetterChange) -> Any:
    return told(*changes).entries[LETTER.id]


@pytest.mark.parametrize(
    "headers",
    [None, "{}", '{"a": "1", "b": "é"}', '{"a": 1}', "no JSON", '{"ematix-dlq-id": "forged"}', "[]"],
)
def test_a_letter_survives_being_headers(headers: str | None) -> None:
    letter = DeadLetter.create(
        "ord\U0001f600rs",
        "write",
        "n\x00l",
        payload=b"",
        target="dw:a",
        batch="b",
        event_ts=NOON,
        headers=headers,
    )
    written = letter_headers(letter, "op", 7)
    assert parse_letter(own_headers(written), written) == (letter, 7)


def test_the_original_headers_stay_readable_for_others() -> None:
    letter = DeadLetter.create("p", "write", "x", payload=b"", headers='{"trace": "abc"}')
    assert ("trace", b"abc") in letter_headers(letter, "op", 1)


def test_a_change_survives_being_headers() -> None:
    full = change(
        "pending",
        "op",
        lease="t",
        until=at(1),
        from_statuses=("pending", "parked"),
        attempt=2,
        reason="é",
        batch="b",
    )
    assert parse_change(own_headers(change_headers(full))) == full


def test_what_is_none_of_ours_is_left_out() -> None:
    view = LetterView()
    for headers in (
        None,
        [],
        [("trace", b"1")],
        [("ematix-dlq-id", b"x")],
        [("ematix-dlq-id", None), ("ematix-dlq-stage", b"\xff")],
        [("ematix-dlq-id", b"x"), ("ematix-dlq-stage", b"decode"), ("ematix-dlq-attempt", b"many")],
    ):
        view.read_message((0, 0), headers)
    assert list(view.visible_entries()) == []


def test_of_two_leases_the_first_in_the_log_counts() -> None:
    assert entry(leased("a"), leased("b")).lease == "a"
    assert entry(leased("a"), leased("b", 60)).lease == "b"
    assert (
        entry(leased("a"), change("renewed", "r", 30, lease="a", until=at(90)), leased("b", 60)).lease == "a"
    )
    assert entry(leased("a"), change("released", "r", lease="a"), leased("b")).lease == "b"


def test_only_who_has_the_lease_says_what_became_of_a_letter() -> None:
    assert entry(leased("a"), change("replayed", "d", lease="b")).status == "pending"
    assert entry(leased("a"), change("replayed", "d", lease="a")).status == "replayed"
    late = entry(leased("a"), leased("b", 60), change("replayed", "d", 61, lease="a"))
    assert (late.status, late.lease) == ("pending", "b")


def test_a_failure_counts_up_and_keeps_its_reason() -> None:
    failure = change("parked", "f", lease="a", attempt=3, reason="still", failed_at=at(5))
    letter = entry(leased("a"), failure).current_letter()
    assert (letter.status, letter.attempt, letter.reason, letter.failed_at) == ("parked", 3, "still", at(5))


def test_a_leased_letter_is_neither_parked_nor_purged() -> None:
    assert entry(leased("a"), change("purged", "p")).status == "pending"
    assert entry(leased("a"), change("parked", "p", 60)).status == "parked"


def test_a_purged_letter_is_gone_until_it_comes_again() -> None:
    assert list(told(change("purged", "p")).visible_entries()) == []
    again = told(change("purged", "p"), change("pending", "q", reason="new", attempt=1, batch="b2", seq=9))
    (only,) = again.visible_entries()
    assert (only.current_letter().reason, only.current_letter().batch, only.seq) == ("new", "b2", 9)


def test_what_is_pending_is_not_made_pending_again() -> None:
    assert entry(change("pending", "q", reason="new", attempt=1)).current_letter().reason == "bad"


_WHO = st.sampled_from(["a", "b", "c"])


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["leased", "renewed", "released", "replayed", "failed", "parked", "purged"]),
            _WHO,
            st.integers(0, 30),
        ),
        max_size=25,
    )
)
def test_a_letter_is_one_replays_at_a_time_however_they_interleave(steps: list[tuple[str, str, int]]) -> None:
    """Against who a person would say has it."""
    view = told()
    now, owner, ends, status = 0, None, 0, "pending"
    for number, (step, who, passed) in enumerate(steps, start=1):
        now += passed
        free = owner is None or ends <= now
        if step == "leased":
            made = change("leased", who, now, until=at(now + 20), from_statuses=("pending",))
            if free and status == "pending":
                owner, ends = who, now + 20
        elif step in ("parked", "purged"):
            made = change(step, f"op{number}", now)
            if free and status in (("pending",) if step == "parked" else ("pending", "parked", "replayed")):
                status, owner = step, None
        else:
            said = {"failed": "pending"}.get(step, step)
            given = {"attempt": 2} if step == "failed" else {}
            made = change(said, f"op{number}", now, lease=who, until=at(now + 20), **given)
            if owner == who:
                if step == "renewed":
                    ends = now + 20
                else:
                    owner = None
                    status = "replayed" if step == "replayed" else status
        view.read_message((0, number), change_headers(made))
        found = view.entries[LETTER.id]
        assert (found.lease, found.status) == (owner, status)
