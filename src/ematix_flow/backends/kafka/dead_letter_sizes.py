"""The size of a dead letter as a message, and how it is cut to fit the topic's limit."""

from __future__ import annotations

from dataclasses import replace

from ematix_flow.backends.kafka.dead_letter_records import Headers, letter_headers
from ematix_flow.state.dead_letters.base import DeadLetter

_FRAME = 128  # overhead of a batch of one message, and of the message in it
_HEADER_OVERHEAD = 10  # its two lengths
_REMARK = 160  # the text that the cut adds to the reason
_NUMBERS = ("0" * 32, 10**19)  # the longest operation and sequence number


def message_size(payload: bytes, key: bytes | None, headers: Headers) -> int:
    """The maximum size of a message, before compression."""
    header_bytes = sum(len(name.encode()) + len(value or b"") + _HEADER_OVERHEAD for name, value in headers)
    return _FRAME + len(payload) + len(key or b"") + header_bytes


def fit_letter(letter: DeadLetter, allowed: int, longest_payload: int) -> DeadLetter:
    """The letter, cut where needed to fit into a message of ``allowed`` bytes.

    The payload is cut first; if that is not enough, the headers are dropped, then the key is cut, and last
    the reason. A letter that is cut cannot be replayed.
    """
    if _letter_size(letter) <= allowed and len(letter.payload) <= longest_payload:
        return letter
    cut_letter = replace(letter, payload=b"")
    if _letter_size(cut_letter) + _REMARK > allowed:
        cut_letter = replace(cut_letter, headers=None)
    over = _letter_size(cut_letter) + _REMARK - allowed
    if over > 0 and cut_letter.key is not None:
        cut_letter = replace(cut_letter, key=cut_letter.key[: max(0, len(cut_letter.key) - over)])
        over = _letter_size(cut_letter) + _REMARK - allowed
    if over > 0:
        encoded = cut_letter.reason.encode()
        cut_letter = replace(
            cut_letter, reason=encoded[: max(0, len(encoded) - over)].decode("utf-8", "ignore")
        )
    room = min(longest_payload, max(0, allowed - _letter_size(cut_letter) - _REMARK))
    payload = letter.payload[:room]
    return replace(
        cut_letter,
        payload=payload,
        whole=False,
        status="parked",
        reason=cut_letter.reason + _cut_remark(letter, cut_letter, payload),
    )


def _cut_remark(letter: DeadLetter, cut_letter: DeadLetter, payload: bytes) -> str:
    cut_parts = [
        name
        for name, is_cut in (
            ("headers", letter.headers != cut_letter.headers),
            ("key", letter.key != cut_letter.key),
        )
        if is_cut
    ]
    remark = f", {' and '.join(cut_parts)} cut" if cut_parts else ""
    return f" (kept are {len(payload):,} of {len(letter.payload):,} bytes{remark}: it cannot be replayed)"


def _letter_size(letter: DeadLetter) -> int:
    return message_size(letter.payload, letter.key, letter_headers(letter, *_NUMBERS))
