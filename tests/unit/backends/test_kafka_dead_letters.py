"""Dead letters as messages of a topic, without a broker."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ematix_flow.backends.kafka.dead_letters import fit_letter, letter_headers, letter_message
from ematix_flow.backends.kafka.sender import message_batch_size
from ematix_flow.state.dead_letters.base import DeadLetter

NOON = dt.datetime(2026, 3, 1, 12, 0, tzinfo=dt.timezone.utc)


def a_letter(**given: Any) -> DeadLetter:
    return DeadLetter.create("orders", "write", **{"reason": "bad", "payload": b"x", **given})


def ours(letter: DeadLetter) -> dict[str, str]:
    prefix = "ematix-dlq-"
    found = [(name, value) for name, value in letter_headers(letter) if name.startswith(prefix)]
    assert len(found) == len(dict(found))
    return {name.removeprefix(prefix): (value or b"").decode() for name, value in found}


def original(letter: DeadLetter) -> list[tuple[str, bytes | None]]:
    return [(name, value) for name, value in letter_headers(letter) if not name.startswith("ematix-dlq-")]


def test_a_message_has_everything_that_is_known_of_its_letter() -> None:
    letter = a_letter(
        source="events", partition="3", position="7", target="dw:a", batch="b", event_ts=NOON, failed_at=NOON
    )
    assert ours(letter) == {
        "id": letter.id,
        "pipeline": "orders",
        "stage": "write",
        "reason": "bad",
        "source": "events",
        "partition": "3",
        "position": "7",
        "target": "dw:a",
        "batch": "b",
        "format": "json",
        "attempt": "1",
        "failed-at": "2026-03-01T12:00:00+00:00",
        "event-ts": "2026-03-01T12:00:00+00:00",
        "payload-size": "1",
        "whole": "true",
    }


def test_payload_and_key_are_the_original_bytes() -> None:
    message = letter_message(a_letter(payload=b"\x00\xff", key=b""))
    assert (message["value"], message["key"]) == (b"\x00\xff", b"")
    assert "key" not in letter_message(a_letter())


@pytest.mark.parametrize(
    ("headers", "sent"),
    [
        (None, []),
        ("{}", []),
        ('{"a": "1", "b": "é"}', [("a", b"1"), ("b", "é".encode())]),
        ('{"a": 1, "b": null, "c": [2]}', [("a", b"1"), ("b", None), ("c", b"[2]")]),
        (r'{"a": "\ud800", "n\u0000l": "\u0000"}', [("a", b"\\ud800"), ("n\\x00l", b"\x00")]),
    ],
)
def test_the_original_headers_are_sent_under_their_names(headers: str | None, sent: list[Any]) -> None:
    letter = a_letter(headers=headers)
    assert original(letter) == sent
    assert "headers" not in ours(letter)


@pytest.mark.parametrize(
    ("headers", "sent"),
    [
        ("no JSON", []),
        ("[]", []),
        ('{"": "1", "a": "2"}', [("a", b"2")]),
        ('{"ematix-dlq-id": "of another letter", "a": "2"}', [("a", b"2")]),
    ],
)
def test_headers_that_cannot_have_their_names_are_sent_as_one(headers: str, sent: list[Any]) -> None:
    letter = a_letter(headers=headers)
    assert original(letter) == sent
    assert (ours(letter)["headers"], ours(letter)["id"]) == (headers, letter.id)


def test_a_letter_that_fits_is_not_changed() -> None:
    letter = a_letter(payload=b"p" * 1_000)
    assert fit_letter(letter, message_batch_size(letter_message(letter))) == letter


def test_a_payload_is_cut_before_anything_else() -> None:
    cut = fit_letter(a_letter(payload=b"p" * 9_000, key=b"k", headers='{"a": "1"}'), 5_000)
    assert 4_000 < len(cut.payload) < 5_000
    assert (cut.key, cut.headers, cut.reason) == (b"k", '{"a": "1"}', "bad")
    assert (ours(cut)["whole"], ours(cut)["payload-size"]) == ("false", "9000")


@given(
    payload=st.integers(0, 6_000),
    key=st.none() | st.integers(0, 6_000),
    header=st.integers(0, 6_000),
    reason=st.integers(0, 8_000),
    max_bytes=st.integers(1_000, 9_000),
)
def test_every_letter_fits(payload: int, key: int | None, header: int, reason: int, max_bytes: int) -> None:
    letter = a_letter(
        payload=b"p" * payload,
        key=None if key is None else b"k" * key,
        headers=json.dumps({"h": "x" * header}),
        reason="é" * (reason // 2),
        source="events",
    )
    cut = fit_letter(letter, max_bytes)
    assert message_batch_size(letter_message(cut)) <= max_bytes
    assert cut.whole == (cut == letter)
    assert letter.payload.startswith(cut.payload)
